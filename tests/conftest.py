"""What holds for all tests, and how they are spread over processes (`pytest -n 3 --dist loadgroup`, as tests/run does).

Properties are judged by their truth, not by how busy the machine is.

A file stays in one process: its fixtures are made once. What trains takes turns: two trainings at once on two
cores measure nothing but each other. What drives a browser takes turns too; hosts are made without a change to
this machine's own network, at which a browser would drop its connections.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("rankcall", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("rankcall")

TESTS = Path(__file__).parent
TAKE_TURNS = {"browser": "browser", "training": "training"}


# before xdist reads the marks
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        folder = item.path.relative_to(TESTS).parts[0]
        item.add_marker(pytest.mark.xdist_group(TAKE_TURNS.get(folder, item.path.stem)))
