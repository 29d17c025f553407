"""A healthy training that makes no step for a while, but works, raises no alarm.

Real agents and a training that takes no time; twenty trainings of the real stack are in tests/training/test_quiet_phases.py.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from deployment import Deployment, deployed

QUIET_S = 5


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with deployed(tmp_path_factory.mktemp("shared")) as deployment:
        yield deployment


@pytest.mark.parametrize("doing", ["computing", "writing", "reading"])
def test_a_quiet_phase_in_which_one_rank_works_is_not_a_hang(shared: Deployment, doing: str) -> None:
    plan = {"steps": 3, "quiet": {"0": "waiting", "1": doing}, "quiet_s": QUIET_S + 6}
    job_id = shared.submit(plan, deadlines={"train_quiet_s": QUIET_S})
    job = shared.until(job_id, lambda job: job["state"] in ("succeeded", "failed"))
    assert (job["state"], job["findings"]) == ("succeeded", []), shared.everything_said()


@pytest.mark.long  # a hang that is found is in test_agent_hang.py
def test_the_same_pause_without_work_is_one(shared: Deployment) -> None:
    plan = {"steps": 3, "quiet": {"0": "waiting", "1": "waiting"}, "quiet_s": QUIET_S + 6}
    job_id = shared.submit(plan, deadlines={"train_quiet_s": QUIET_S})
    job = shared.until(job_id, lambda job: job["state"] in ("succeeded", "failed"))
    assert job["state"] == "failed"
    assert "RUN030" in {found["code"] for found in job["findings"]}
