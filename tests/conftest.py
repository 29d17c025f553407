"""What holds for all tests, and how they are spread over processes (`pytest -n 4`, as tests/run does).

Properties are judged by their truth, not by how busy the machine is.

A file stays in one process: its fixtures are made once. Folders whose tests would disturb each other take turns:
two trainings at once on two cores measure nothing but each other. So do deployments in one network: each would find the
rendezvous port free, and then taken by another. What takes longest begins first.
"""

from __future__ import annotations

import functools
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch_at_hand
from hypothesis import HealthCheck, settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

settings.register_profile("rankcall", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("rankcall")
# Started in the background, a shell's children ignore Ctrl-C, and so would all that tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Coordinators of tests do not ask Axolotl, which would import torch for each of them; a test of that says so.
os.environ["RANKCALL_AXOLOTL_WAIT_S"] = "0"

TESTS = Path(__file__).parent
TAKE_TURNS = ("training", "deployments", "hosts", "browser")
# Unit tests last: they fill what the others leave.
ORDER = (*TAKE_TURNS, "gpu", "service", "unit")


@functools.cache
def kind(file: Path) -> str:
    """The folder of a file of tests; those that start whole deployments on this host are a kind of their own."""
    folder = file.relative_to(TESTS).parts[0]
    deploys = re.search(r"^from (deployment|chaos) import", file.read_text(), re.MULTILINE)
    return "deployments" if deploys and folder == "service" else folder


class ByKindOrFile(LoadScopeScheduling):
    """A kind that takes turns goes to one process as a whole, any other file by file."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.split("::", 1)[0]
        found = kind(TESTS.parent / file)
        return found if found in TAKE_TURNS else file


def pytest_configure(config: pytest.Config) -> None:
    """One process has torch at hand for all tests, until this one ends."""
    if hasattr(config, "workerinput"):
        return
    folder = tempfile.TemporaryDirectory(prefix="torch-at-hand-")
    path = str(Path(folder.name, "socket"))
    server = subprocess.Popen(
        [sys.executable, torch_at_hand.__file__, path], stdin=subprocess.PIPE, cwd=TESTS.parent
    )
    os.environ[torch_at_hand.SOCKET] = path

    def end() -> None:
        server.communicate()
        folder.cleanup()

    config.add_cleanup(end)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> ByKindOrFile:
    config.option.loadscopereorder = False
    return ByKindOrFile(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: ORDER.index(kind(item.path)))
