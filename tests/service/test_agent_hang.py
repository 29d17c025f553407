"""A training that hangs is found, said, ended on every replica and tried again: real agents, real processes."""

from __future__ import annotations

from pathlib import Path

import psutil
from deployment import deployed
from test_agent_whole import pids_in


def test_a_stopped_rank_is_named_ended_everywhere_and_the_next_attempt_trains(tmp_path: Path) -> None:
    with deployed(tmp_path) as deployment:
        job_id = deployment.submit(
            {"steps": 4, "hang": {"0": "sleep", "1": "stop"}}, deadlines={"train_quiet_s": 8}, max_attempts=2
        )
        job = deployment.until(job_id, lambda job: job["state"] in ("succeeded", "failed"))
        assert job["state"] == "succeeded", (job["findings"], deployment.everything_said())
        (found,) = (one for one in job["findings"] if one["code"] == "RUN030")
        assert found["evidence"]["behind"] == [1]
        assert "Rank 1 (in start at step 4): it is stopped" in found["message"]
        assert found["replica"] == job["previous"][0]["members"][1]["replica_id"]
        assert job["attempts"] == 2
        for number in (0, 1):
            stacks = deployment.layout(number).attempt(job_id, 1).streams / "evidence.stacks"
            assert f"=== rank {number}, pid" in stacks.read_text()
            assert "hang (" in stacks.read_text()
            sockets = stacks.with_name("evidence.sockets")
            deployment.eventually(
                lambda n=number, s=sockets: (
                    deployment.mirrored(n, job_id, "evidence.sockets") == s.read_bytes()
                )
            )
        assert [one["state"] for one in job["previous"][0]["stages"] if one["stage"] == "train"] == ["failed"]
        for number in (0, 1):
            first = deployment.layout(number).attempt(job_id, 1).streams / "train.log"
            assert not any(psutil.pid_exists(pid) for pid in pids_in(first.read_bytes()))
