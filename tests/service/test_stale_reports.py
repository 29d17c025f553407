"""Words of the past and of others change nothing: an incarnation that was replaced, an attempt that is over, a stranger."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from least import CONFIG
from serving import TOKEN, Coordinator, running
from simulated_agent import Agent

from coordinator.core.protocol import Append, Report, ReportReply, RunResult, Stage, TaskReport
from coordinator.core.views import JobView, StreamPage

PATIENCE_S = 60.0


@pytest.fixture
def coordinator(tmp_path: Path) -> Iterator[Coordinator]:
    with running(tmp_path, nodes=2) as served:
        yield served


@pytest.fixture
def client(coordinator: Coordinator) -> Iterator[httpx.Client]:
    with coordinator.client() as opened:
        yield opened


@pytest.fixture
def agents(coordinator: Coordinator) -> Iterator[tuple[Agent, Agent, Agent]]:
    """Two that train until they are told otherwise, and a third that has no seat."""
    three = (
        Agent(coordinator.url, 0, TOKEN),
        Agent(coordinator.url, 1, TOKEN),
        Agent(coordinator.url, 2, TOKEN),
    )
    for agent in three:
        agent.hold = frozenset({Stage.TRAIN})
        agent.live()
    yield three
    for agent in three:
        agent.end()


def job(client: httpx.Client, job_id: str) -> JobView:
    return JobView.model_validate_json(client.get(f"/api/v1/jobs/{job_id}").raise_for_status().content)


def until(client: httpx.Client, job_id: str, good: Callable[[JobView], bool]) -> JobView:
    end = time.monotonic() + PATIENCE_S
    while not good(found := job(client, job_id)):
        assert time.monotonic() < end, (found.state, found.stage, found.verdict)
        time.sleep(0.05)
    return found


def training(client: httpx.Client, attempt: int = 1) -> Callable[[JobView], bool]:
    return lambda job: job.stage == "train" and job.attempts == attempt


def submitted(client: httpx.Client) -> str:
    answer = client.post("/api/v1/jobs", json={"config": CONFIG, "nodes": 2, "gpus_per_node": 0})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def streams(client: httpx.Client, job_id: str) -> dict[tuple[int, int, str], int]:
    page = StreamPage.model_validate_json(client.get(f"/api/v1/jobs/{job_id}/streams").content)
    return {(info.attempt, info.rank, info.stream): info.size_bytes for info in page.items}


def failure(attempt_id: str, incarnation: int, *appends: Append) -> Report:
    """The training has ended with an exit code, says this report."""
    ended = TaskReport(task_id="train", stage=Stage.TRAIN, state="failed", result=RunResult(exit_code=1))
    return Report(incarnation=incarnation, attempt_id=attempt_id, tasks=(ended,), appends=appends)


def say(coordinator: Coordinator, replica_id: str, token: str, report: Report) -> httpx.Response:
    with coordinator.client(token) as client:
        return client.post(f"/api/v1/replicas/{replica_id}/report", content=report.model_dump_json())


def test_the_exit_report_of_an_old_incarnation_is_refused_and_changes_nothing(
    coordinator: Coordinator, client: httpx.Client, agents: tuple[Agent, Agent, Agent]
) -> None:
    job_id = submitted(client)
    until(client, job_id, training(client))
    before, sizes = job(client, job_id), streams(client, job_id)
    old = agents[1]
    old_token = old.token
    new = Agent(coordinator.url, 1, TOKEN)
    new.incarnation = 2
    new.register().raise_for_status()
    words = Append(attempt_id=f"{job_id}-1", stream="train.log", offset=0, data=b"from the past\n")
    stale = failure(f"{job_id}-1", 1, words)

    by_old_token = say(coordinator, old.replica_id, old_token, stale)
    assert by_old_token.status_code == 401, "its token went with it"
    refused = say(coordinator, old.replica_id, new.token, stale)
    assert (refused.status_code, refused.headers["content-type"]) == (409, "application/problem+json")
    assert refused.json()["code"] == "SYS107"
    assert "incarnation (2)" in refused.json()["detail"]
    again = Agent(coordinator.url, 1, TOKEN)
    assert again.register().status_code == 409, "nor can it come back"

    after = job(client, job_id)
    assert (after.state, after.stage, after.attempts) == ("running", "train", 1)
    assert after.findings == before.findings
    assert streams(client, job_id) == sizes

    assert say(coordinator, old.replica_id, new.token, failure(f"{job_id}-1", 2)).status_code == 200
    until(client, job_id, lambda job: job.attempt is not None and job.attempt.state == "ending")
    new.report().raise_for_status()  # it has let go
    failed = until(client, job_id, lambda job: job.state == "failed")
    new.end()
    assert [(found.code, found.replica) for found in failed.findings] == [("RUN001", old.replica_id)]


def test_the_exit_report_of_an_attempt_that_is_over_does_not_touch_the_next(
    coordinator: Coordinator, client: httpx.Client, agents: tuple[Agent, Agent, Agent]
) -> None:
    job_id = submitted(client)
    until(client, job_id, training(client))
    client.post(f"/api/v1/jobs/{job_id}/cancel").raise_for_status()
    until(client, job_id, lambda job: job.state == "cancelled")
    client.post(f"/api/v1/jobs/{job_id}/retry").raise_for_status()
    until(client, job_id, training(client, 2))
    late = agents[1]
    assert say(coordinator, late.replica_id, late.token, failure(f"{job_id}-1", 1)).status_code == 200
    # The next job's verdict shows that everything has been looked at since.
    until(client, submitted(client), lambda job: "waiting" in job.verdict)
    now = job(client, job_id)
    assert (now.state, now.stage, now.attempts, now.findings) == ("running", "train", 2, ())


def test_the_streams_of_an_attempt_grow_only_by_those_who_have_a_seat_in_it(
    coordinator: Coordinator, client: httpx.Client, agents: tuple[Agent, Agent, Agent]
) -> None:
    job_id = submitted(client)
    until(client, job_id, training(client))
    attempt_id = f"{job_id}-1"
    assert agents[1].append("train.log", b"of rank 1\n") == 10
    sizes = streams(client, job_id)
    stranger = agents[2]
    words = Append(attempt_id=attempt_id, stream="train.log", offset=10, data=b"of a stranger\n")
    answer = say(coordinator, stranger.replica_id, stranger.token, failure(attempt_id, 1, words))
    assert answer.status_code == 200
    assert ReportReply.model_validate_json(answer.content).acknowledged == ()
    assert streams(client, job_id) == sizes
    assert job(client, job_id).state == "running"
    # A member writes streams of its own only: the same name is another stream.
    mine = Append(attempt_id=attempt_id, stream="train.log", offset=0, data=b"of rank 0\n")
    assert say(
        coordinator, agents[0].replica_id, agents[0].token, Report(incarnation=1, appends=(mine,))
    ).is_success
    for rank, said in ((0, b"of rank 0\n"), (1, b"of rank 1\n")):
        read = client.get(f"/api/v1/jobs/{job_id}/logs", params={"rank": rank, "stream": "train.log"})
        assert read.content == said


def test_an_append_to_an_attempt_that_does_not_exist_leaves_no_stream(
    coordinator: Coordinator, client: httpx.Client, agents: tuple[Agent, Agent, Agent]
) -> None:
    words = Append(attempt_id="ffffffff-1", stream="train.log", offset=0, data=b"of nothing\n")
    one = agents[0]
    answer = say(coordinator, one.replica_id, one.token, Report(incarnation=1, appends=(words,)))
    assert ReportReply.model_validate_json(answer.content).acknowledged == ()
    assert client.get("/api/v1/jobs/ffffffff/streams").status_code == 404


def test_nobody_reports_for_another(coordinator: Coordinator, agents: tuple[Agent, Agent, Agent]) -> None:
    one, two, _ = agents
    assert say(coordinator, two.replica_id, one.token, Report(incarnation=1)).status_code == 403


def test_a_report_that_was_overtaken_on_its_way_brings_its_streams_and_no_old_news(
    coordinator: Coordinator, client: httpx.Client, agents: tuple[Agent, Agent, Agent]
) -> None:
    """Given up by its sender and delivered late by a network that had held it back."""
    job_id = submitted(client)
    until(client, job_id, training(client))
    one, attempt_id = agents[1], f"{job_id}-1"
    one.vanish()
    words = Append(attempt_id=attempt_id, stream="train.log", offset=0, data=b"early words\n")
    now = Report(incarnation=1, number=7, holding=(attempt_id,), attempt_id=attempt_id)
    assert say(coordinator, one.replica_id, one.token, now).is_success
    before = failure(attempt_id, 1, words).model_copy(update={"number": 6, "leaving": True})
    assert say(coordinator, one.replica_id, one.token, before).is_success
    # The next job's verdict shows that everything has been looked at since.
    until(client, submitted(client), lambda job: "waiting" in job.verdict)
    after = job(client, job_id)
    assert (after.state, after.stage, after.findings) == ("running", "train", ())
    (seen,) = (
        item for item in client.get("/api/v1/replicas").json()["items"] if item["id"] == one.replica_id
    )
    assert seen["alive"]
    read = client.get(f"/api/v1/jobs/{job_id}/logs", params={"rank": 1, "stream": "train.log"})
    assert read.content == b"early words\n"


def test_a_report_that_is_overtaken_while_it_is_written_does_not_bring_back_what_was(
    coordinator: Coordinator, client: httpx.Client, agents: tuple[Agent, Agent, Agent]
) -> None:
    job_id = submitted(client)
    until(client, job_id, training(client))
    one, attempt_id = agents[1], f"{job_id}-1"
    one.vanish()
    words = Append(attempt_id=attempt_id, stream="train.log", offset=0, data=b"last words\n")
    before = Report(incarnation=1, number=1, holding=(attempt_id,), attempt_id=attempt_id, appends=(words,))
    after = Report(incarnation=1, number=2)
    entered, go = threading.Event(), threading.Event()

    def hold(_: object) -> None:
        entered.set()
        go.wait(PATIENCE_S)

    with ThreadPoolExecutor() as pool:
        held = pool.submit(coordinator.services.store.write_now, hold)
        entered.wait(PATIENCE_S)
        late = pool.submit(say, coordinator, one.replica_id, one.token, before)
        end = time.monotonic() + PATIENCE_S
        while coordinator.services.store.figures().waiting == 0 and time.monotonic() < end:
            time.sleep(0.01)
        assert say(coordinator, one.replica_id, one.token, after).is_success
        go.set()
        held.result(PATIENCE_S)
        assert late.result(PATIENCE_S).is_success
    presence = coordinator.services.roster.get(one.replica_id)
    assert presence is not None and presence.holding == frozenset() and presence.attempt_id is None
