"""A training that hangs is found, said, ended on every replica and tried again: real agents, real processes."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest
from deployment import deployed
from test_agent_whole import pids_in


def test_a_stopped_rank_is_named_ended_everywhere_and_the_next_attempt_trains(tmp_path: Path) -> None:
    with deployed(tmp_path) as deployment:
        job_id = deployment.submit(
            {"steps": 4, "save_steps": 2, "hang": {"0": "sleep", "1": "stop"}},
            deadlines={"train_quiet_s": 8},
            max_attempts=2,
        )
        job = deployment.until(job_id, lambda job: job["state"] in ("succeeded", "failed"))
        assert job["state"] == "succeeded", (job["findings"], deployment.everything_said())
        (found,) = (one for one in job["findings"] if one["code"] == "RUN030")
        assert found["evidence"]["behind"] == [1]
        assert "Rank 1 (in train at step 4): it is stopped" in found["message"]
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
        again = deployment.layout(1).attempt(job_id, 2).streams / "progress.0"
        assert '"step": 4' in again.read_text().splitlines()[0], "it goes on where it was saved"
        said = [one for one in job["findings"] if one["code"] in ("RUN033", "RUN038")]
        assert [one["code"] for one in said] == ["RUN033", "RUN038"]
        assert said[0]["evidence"]["verdict"] == "transient" and said[0]["evidence"]["passes"] == 3


@pytest.mark.long
def test_a_job_that_hangs_without_another_attempt_left_says_what_its_links_are_worth(tmp_path: Path) -> None:
    with deployed(tmp_path) as deployment:
        job_id = deployment.submit(
            {"steps": 2, "hang": {"0": "sleep", "1": "sleep"}}, deadlines={"train_quiet_s": 8}
        )
        job = deployment.until(job_id, lambda job: job["state"] in ("succeeded", "failed"))
        assert job["state"] == "failed" and job["stage"] == "train"
        assert "transient" in job["verdict"], job["verdict"]
        assert [one["stage"] for one in job["attempt"]["stages"]] == ["gather", "match", "tcp", "collective"]


@pytest.mark.long
def test_a_training_that_hangs_twice_at_the_same_place_is_not_tried_a_third_time(tmp_path: Path) -> None:
    with deployed(tmp_path) as deployment:
        job_id = deployment.submit(
            {"steps": 2, "hang": {"0": "sleep", "1": "stop"}, "hang_again": True},
            deadlines={"train_quiet_s": 8},
            max_attempts=5,
        )
        job = deployment.until(job_id, lambda job: job["state"] in ("succeeded", "failed"))
        assert (job["state"], job["attempts"]) == ("failed", 2)
        assert "Attempts 1 and 2 hung alike, with rank 1 behind" in job["verdict"]


def test_a_rank_that_dies_ends_the_others_and_the_next_attempt_goes_on_from_the_checkpoint(
    tmp_path: Path,
) -> None:
    with deployed(tmp_path) as deployment:
        job_id = deployment.submit(
            {"steps": 6, "save_steps": 4, "hang": {"1": "kill"}, "hang_when": "saved", "until": "release"},
            max_attempts=2,
        )
        for number in (0, 1):
            deployment.eventually(lambda number=number: b"step 6" in deployment.stream(number, job_id))
        for number in (0, 1):
            (deployment.layout(number).work(job_id) / "saved").touch()
        deployment.until(job_id, lambda job: job["attempts"] == 2)
        for number in (0, 1):
            (deployment.layout(number).work(job_id) / "release").touch()
        job = deployment.until(job_id, lambda job: job["state"] in ("succeeded", "failed"))
        assert job["state"] == "succeeded", (job["findings"], deployment.everything_said())
        first = next(one for one in job["findings"] if one["severity"] == "error")
        assert first["replica"] == job["previous"][0]["members"][1]["replica_id"]
        steps = deployment.stream(0, job_id, attempt=2).decode()
        assert "step 4\n" not in steps and "step 5\n" in steps


@pytest.mark.long
def test_an_attempt_that_saves_nothing_does_not_hand_out_the_model_of_the_one_before(tmp_path: Path) -> None:
    with deployed(tmp_path) as deployment:
        job_id = deployment.submit({"hang": {"0": "sleep", "1": "sleep"}, "saves_in": 1}, max_attempts=2)
        saved = deployment.layout(0).work(job_id) / "outputs/model.safetensors"
        deployment.eventually(lambda: saved.is_file() and pids_in(deployment.stream(1, job_id)))
        os.kill(pids_in(deployment.stream(1, job_id))[0], signal.SIGKILL)
        job = deployment.until(job_id, lambda job: job["state"] in ("succeeded", "failed"))
        assert (job["state"], job["stage"], job["attempts"]) == ("failed", "collect", 2), job["findings"]
        assert saved.is_file()
        assert "model.safetensors was there before it began" in job["verdict"]
        assert deployment.client.get(f"/jobs/{job_id}/artifacts").json()["items"] == []


@pytest.mark.long
def test_a_loss_that_stays_no_number_ends_the_training_and_names_rank_and_step(tmp_path: Path) -> None:
    with deployed(tmp_path) as deployment:
        job_id = deployment.submit(
            {"steps": 9, "step_s": 0.5, "not_a_number": {"1": 2}, "until": "never"}, max_attempts=3
        )
        job = deployment.until(job_id, lambda job: job["state"] in ("succeeded", "failed"))
        assert (job["state"], job["attempts"]) == ("failed", 1)
        found = [one for one in job["findings"] if one["code"] in ("RUN049", "RUN056")]
        assert found[-1]["code"] == "RUN049" and found[-1]["severity"] == "error"
        assert "rank 1" in found[-1]["message"] and "step 2" in found[-1]["message"]
        for number in (0, 1):
            pids = pids_in(deployment.stream(number, job_id))
            assert pids and not any(psutil.pid_exists(pid) for pid in pids)


@pytest.mark.long  # the five minutes
@pytest.mark.timeout(900)
def test_agents_alone_gather_evidence_of_a_hang_and_end_it_after_five_minutes(tmp_path: Path) -> None:
    with deployed(tmp_path) as deployment:
        job_id = deployment.submit({"steps": 20, "step_s": 0.5, "hang": {"0": "sleep", "1": "stop"}})
        deployment.training(job_id)
        deployment.end_coordinator(signal.SIGKILL)
        for number in (0, 1):
            deployment.eventually(
                lambda n=number: deployment.stream(n, job_id, "evidence.judgement"), within_s=120
            )
            # gathered after it was judged, which takes a moment
            deployment.eventually(
                lambda n=number: b"hang (" in deployment.stream(n, job_id, "evidence.stacks"), within_s=30
            )
            assert deployment.running(number)
        for number in (0, 1):
            deployment.eventually(lambda n=number: not deployment.running(n), within_s=400)
        deployment.start_coordinator()
        job = deployment.until(job_id, lambda job: job["state"] in ("succeeded", "failed"))
        assert job["state"] == "failed" and "RUN039" in {one["code"] for one in job["findings"]}
        judged = deployment.layout(0).attempt(job_id, 1).streams / "evidence.judgement"
        deployment.eventually(
            lambda: deployment.mirrored(0, job_id, "evidence.judgement") == judged.read_bytes()
        )
