"""Jobs over HTTP: submitted once, refused with reasons, listed in pages, cancelled, tried again, looked at."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from least import CONFIG
from serving import TOKEN, Coordinator, running
from simulated_agent import STEPS, Agent

from coordinator.core.protocol import Stage


@pytest.fixture
def coordinator(tmp_path: Path) -> Iterator[Coordinator]:
    with running(tmp_path) as served:
        yield served


@pytest.fixture
def client(coordinator: Coordinator) -> Iterator[httpx.Client]:
    with coordinator.client() as client:
        yield client


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A client of a coordinator that several tests share: they leave nothing in it."""
    with running(tmp_path_factory.mktemp("state")) as served, served.client() as client:
        yield client


@pytest.fixture
def agents(coordinator: Coordinator) -> Iterator[list[Agent]]:
    pair = [Agent(coordinator.url, number, TOKEN) for number in range(2)]
    yield pair
    for agent in pair:
        agent.end()


def submission(**more: Any) -> dict[str, Any]:
    return {"config": CONFIG, "gpus_per_node": 0, **more}


def until(
    client: httpx.Client, job_id: str, good: Callable[[dict[str, Any]], bool], within_s: float = 30
) -> Any:
    """The job, once it is as wanted."""
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        job = client.get(f"/api/v1/jobs/{job_id}").json()
        if good(job):
            return job
        time.sleep(0.05)
    raise AssertionError(f"the job stayed {job['state']}/{job['stage']}: {job['verdict']} {job['findings']}")


def test_a_submitted_job_waits_for_as_many_replicas_as_the_deployment_has(client: httpx.Client) -> None:
    answer = client.post("/api/v1/jobs", json=submission(name="first"))
    assert answer.status_code == 201
    job = answer.json()
    assert answer.headers["location"] == f"/api/v1/jobs/{job['id']}"
    assert (job["name"], job["state"], job["stage"], job["nodes"]) == ("first", "queued", "gather", 2)
    assert client.get(answer.headers["location"]).json()["id"] == job["id"]


def test_a_job_that_names_its_nodes_gets_those_and_one_without_a_name_is_called_after_its_config(
    client: httpx.Client,
) -> None:
    job = client.post("/api/v1/jobs", json=submission(nodes=5, config_name="lora-1b.yml")).json()
    assert (job["nodes"], job["name"]) == (5, "lora-1b")


def test_the_same_key_and_body_are_the_same_job_however_often_and_at_once(client: httpx.Client) -> None:
    headers = {"Idempotency-Key": "key-1"}

    def submit(_: int) -> httpx.Response:
        return client.post("/api/v1/jobs", json=submission(name="once"), headers=headers)

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(submit, range(8)))
    assert sorted(answer.status_code for answer in answers) == [200] * 7 + [201]
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert len(client.get("/api/v1/jobs").json()["items"]) == 1


def test_a_key_used_for_another_body_is_refused(client: httpx.Client) -> None:
    headers = {"Idempotency-Key": "key-1"}
    first = client.post("/api/v1/jobs", json=submission(name="a"), headers=headers)
    assert first.status_code == 201
    second = client.post("/api/v1/jobs", json=submission(name="b"), headers=headers)
    assert second.status_code == 422 and second.json()["code"] == "SYS105"
    assert first.json()["id"] in second.json()["detail"]


def test_a_refused_submission_frees_its_key(client: httpx.Client) -> None:
    headers = {"Idempotency-Key": "key-1"}
    assert client.post("/api/v1/jobs", json=submission(config="a: [1"), headers=headers).status_code == 422
    assert client.post("/api/v1/jobs", json=submission(), headers=headers).status_code == 201


def test_broken_yaml_is_refused_with_the_line_and_nothing_is_queued(client: httpx.Client) -> None:
    refused = client.post("/api/v1/jobs", json=submission(config="base_model: x\ndatasets: [1\n"))
    assert refused.status_code == 422
    problem = refused.json()
    assert problem["code"] == "SYS108"
    (finding,) = [f for f in problem["findings"] if f["severity"] == "error"]
    assert finding["code"].startswith("CFG") and finding["file"] == "config.yml" and finding["line"]
    assert client.get("/api/v1/jobs").json()["items"] == []


def test_a_check_says_what_a_submission_would_say_and_keeps_nothing(client: httpx.Client) -> None:
    good = client.post("/api/v1/checks", json=submission())
    assert good.status_code == 200 and good.json()["verdict"] == "accept"
    bad = client.post("/api/v1/checks", json=submission(config="a: [1"))
    assert bad.status_code == 200 and bad.json()["verdict"] == "reject" and bad.json()["findings"]
    assert client.get("/api/v1/jobs").json()["items"] == []


def test_a_finding_allowed_by_its_code_does_not_block(client: httpx.Client) -> None:
    config = submission(config=CONFIG + "deepspeed: nowhere/zero2_bf16.json\n")
    refused = client.post("/api/v1/jobs", json=config)
    codes = [f["code"] for f in refused.json()["findings"] if f["severity"] == "error"]
    assert refused.status_code == 422 and codes
    allowed = client.post("/api/v1/jobs", json={**config, "allow": codes})
    assert allowed.status_code == 201
    assert {f["code"] for f in allowed.json()["findings"]} >= set(codes)


@pytest.mark.parametrize("route", ["jobs", "checks"])
def test_a_code_that_does_not_exist_cannot_be_allowed(route: str, client: httpx.Client) -> None:
    refused = client.post(f"/api/v1/{route}", json=submission(allow=["NOPE", "CFG020"]))
    assert refused.status_code == 422
    assert refused.json()["code"] == "SYS103" and "NOPE" in refused.text and "CFG020" not in refused.text


@pytest.mark.parametrize(
    "override", ["datasets.²=x", f"datasets.{'9' * 5000}=x", "a=!!bool x", f"{'a.' * 5000}a=1", "a=!!int ''"]
)
def test_an_override_that_cannot_be_applied_is_refused_with_its_code(
    override: str, client: httpx.Client
) -> None:
    refused = client.post("/api/v1/jobs", json=submission(overrides=[override]))
    assert refused.status_code == 422
    assert [found["code"] for found in refused.json()["findings"]] == ["CFG010"]
    assert client.post("/api/v1/checks", json=submission(overrides=[override])).status_code == 200


@pytest.mark.parametrize(
    "value", ["!!bool maybe", "!!timestamp tomorrow", "!!float ''", "!!int ''", "!!set {a}"]
)
def test_a_tag_on_a_value_is_judged_in_words(value: str, client: httpx.Client) -> None:
    config = f"{CONFIG}strict: {value}\n"
    assert client.post("/api/v1/checks", json=submission(config=config)).status_code == 200
    assert client.post("/api/v1/jobs", json=submission(config=config)).status_code in (201, 422)


@pytest.mark.parametrize(
    ("body", "key"),
    [
        (b"", None),
        (b"[]", None),
        (b"{", None),
        (b"\xff\xfe", None),
        (b'{"config": 7}', "config"),
        (b'{"config": "a: b", "nods": 2}', "nods"),
        (b'{"config": "a: b", "nodes": 0}', "nodes"),
        (b'{"config": "a: b", "files": [{"path": "x", "data": "!"}]}', "files.0.data"),
    ],
)
def test_a_body_that_is_no_submission_is_refused_naming_the_field(
    body: bytes, key: str | None, reader: httpx.Client
) -> None:
    refused = reader.post("/api/v1/jobs", content=body)
    assert refused.status_code == 422
    problem = refused.json()
    assert problem["code"] == "SYS103" and problem["findings"][0].get("key") == key


@pytest.mark.parametrize(
    "paths",
    [
        ["/etc/passwd"],
        ["../up"],
        ["a/../../up"],
        ["."],
        ["a", "a"],
        ["a", "./a"],
        ["a", "a/b"],
        ["a/b", "a"],
        ["a\n"],
    ],
)
def test_a_bundle_stays_in_its_folder(paths: list[str], reader: httpx.Client) -> None:
    files = [{"path": path, "data": ""} for path in paths]
    refused = reader.post("/api/v1/jobs", json=submission(files=files))
    assert refused.status_code == 422 and refused.json()["findings"][0]["key"] == "files"


def test_pages_hold_every_job_once_newest_first_also_while_jobs_arrive(client: httpx.Client) -> None:
    made = [client.post("/api/v1/jobs", json=submission(name=f"job {n}")).json()["id"] for n in range(7)]
    seen: list[str] = []
    cursor = None
    while True:
        page = client.get(
            "/api/v1/jobs", params={"limit": 3, **({"cursor": cursor} if cursor else {})}
        ).json()
        seen += [job["id"] for job in page["items"]]
        client.post("/api/v1/jobs", json=submission()).raise_for_status()
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert seen == made[::-1]
    assert client.get("/api/v1/jobs", params={"state": "succeeded"}).json()["items"] == []
    for wrong in ({"cursor": "x"}, {"cursor": "-1"}, {"limit": 0}, {"limit": 10**6}, {"state": "sleeping"}):
        assert client.get("/api/v1/jobs", params=wrong).status_code == 422
    assert client.get("/api/v1/jobs", params={"cursor": "9" * 20}).status_code == 200


def test_a_queued_job_is_cancelled_and_cancelling_again_is_harmless(client: httpx.Client) -> None:
    job_id = client.post("/api/v1/jobs", json=submission()).json()["id"]
    assert client.post(f"/api/v1/jobs/{job_id}/cancel").status_code == 202
    until(client, job_id, lambda job: job["state"] == "cancelled")
    assert client.post(f"/api/v1/jobs/{job_id}/cancel").status_code == 202
    actions = [event["action"] for event in client.get("/api/v1/events").json()["items"]]
    assert actions.count("job.cancel_requested") == 1 and actions.count("job.submitted") == 1


def test_only_a_job_that_has_ended_can_be_tried_again(client: httpx.Client) -> None:
    job_id = client.post("/api/v1/jobs", json=submission()).json()["id"]
    refused = client.post(f"/api/v1/jobs/{job_id}/retry")
    assert refused.status_code == 409 and refused.json()["code"] == "SYS106"
    client.post(f"/api/v1/jobs/{job_id}/cancel").raise_for_status()
    until(client, job_id, lambda job: job["state"] == "cancelled")
    assert client.post(f"/api/v1/jobs/{job_id}/retry").status_code == 202
    assert client.get(f"/api/v1/jobs/{job_id}").json()["state"] == "queued"


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/events",
        "/logs",
        "/streams",
        "/metrics",
        "/findings",
        "/files",
        "/artifacts",
        "/artifacts/x",
        "/bundle",
    ],
)
def test_an_unknown_job_is_a_404_everywhere(path: str, reader: httpx.Client) -> None:
    missing = reader.get(f"/api/v1/jobs/ffffffff{path}")
    assert missing.status_code == 404 and missing.json()["code"] == "SYS102"


def test_a_whole_job_can_be_followed_to_its_result(
    client: httpx.Client, coordinator: Coordinator, agents: list[Agent]
) -> None:
    job_id = client.post("/api/v1/jobs", json=submission()).json()["id"]
    nothing_yet = client.get(f"/api/v1/jobs/{job_id}/files")
    assert nothing_yet.status_code == 409
    assert (
        client.get("/api/v1/replicas").json()["message"] == "0 of 2 replicas registered, waiting for 2 more"
    )
    agents[0].live()
    assert (
        client.get("/api/v1/replicas").json()["message"] == "1 of 2 replicas registered, waiting for one more"
    )
    agents[1].live()
    job = until(client, job_id, lambda job: job["state"] in ("succeeded", "failed"))
    assert job["state"] == "succeeded", job
    assert [stage["state"] for stage in job["attempt"]["stages"]] == ["passed"] * 7 + ["skipped"]
    assert [member["rank"] for member in job["attempt"]["members"]] == [0, 1]
    progress = job["progress"]
    assert (progress["step"], progress["total_steps"], progress["loss"]) == (STEPS, STEPS, 2.0 / STEPS)
    assert (progress["eval_loss"], progress["perplexity"], progress["train_loss"]) == (1.18, 3.255, 1.207)
    assert progress["trainable_parameters"] == 11_272_192 and progress["eta_s"] == 0

    metrics = client.get(f"/api/v1/jobs/{job_id}/metrics").json()["items"]
    assert len(metrics) == 2 * (STEPS + 3) and len({metric["id"] for metric in metrics}) == len(metrics)
    paged: list[Any] = []
    cursor: str | None = "0"
    while cursor is not None:
        page = client.get(f"/api/v1/jobs/{job_id}/metrics", params={"limit": 3, "cursor": cursor}).json()
        paged += page["items"]
        cursor = page["next_cursor"]
    assert paged == metrics
    of_rank_1 = client.get(f"/api/v1/jobs/{job_id}/metrics", params={"rank": 1}).json()["items"]
    assert [metric for metric in metrics if metric["rank"] == 1] == of_rank_1

    written = client.get(f"/api/v1/jobs/{job_id}/streams").json()["items"]
    assert {(item["rank"], item["stream"]) for item in written} == {
        (rank, stream) for rank in range(2) for stream in ("train.log", "progress.0")
    }
    for rank in range(2):
        log = client.get(f"/api/v1/jobs/{job_id}/logs", params={"rank": rank})
        assert log.content == f"rank {rank} trained\n".encode()
        assert log.headers["x-rankcall-size"] == str(len(log.content))
        assert log.headers["x-rankcall-offset"] == "0" and log.headers["x-rankcall-attempt"] == "1"
    assert client.get(f"/api/v1/jobs/{job_id}/logs", params={"offset": 5, "limit": 3}).text == "0 t"
    tail = client.get(f"/api/v1/jobs/{job_id}/logs", params={"offset": -8})
    assert tail.text == "trained\n" and tail.headers["x-rankcall-offset"] == "7"
    assert client.get(f"/api/v1/jobs/{job_id}/logs", params={"offset": 10**6}).content == b""
    assert client.get(f"/api/v1/jobs/{job_id}/logs", params={"stream": "compare.log"}).content == b""
    for wrong in ({"rank": 2}, {"attempt": 2}):
        assert client.get(f"/api/v1/jobs/{job_id}/logs", params=wrong).status_code == 404
    assert client.get(f"/api/v1/jobs/{job_id}/logs", params={"stream": "../x"}).status_code == 422

    given = [client.get(f"/api/v1/jobs/{job_id}/files", params={"rank": rank}).json() for rank in range(2)]
    assert given[0]["argv"] and {file["path"] for file in given[0]["files"]} >= {
        "accelerate.yaml",
        "axolotl.yaml",
    }
    differing = [a["path"] for a, b in zip(given[0]["files"], given[1]["files"], strict=True) if a != b]
    assert differing == ["accelerate.yaml"]
    assert client.get(f"/api/v1/jobs/{job_id}/files", params={"rank": 2}).status_code == 404

    actions = [event["action"] for event in client.get("/api/v1/events").json()["items"]]
    assert actions[0] == "job.succeeded" and actions[-1] == "job.submitted"


def test_a_replica_gets_the_bundle_of_the_job_it_has_a_seat_in_and_of_no_other(
    client: httpx.Client, coordinator: Coordinator, agents: list[Agent]
) -> None:
    for agent in agents:
        agent.hold = frozenset({Stage.PREPARE})
    data = bytes(range(256)) * 10
    files = [{"path": "data/train.jsonl", "data": base64.b64encode(data).decode()}]
    config = CONFIG.replace("org/data", "data/train.jsonl")
    answer = client.post("/api/v1/jobs", json=submission(config=config, files=files))
    assert answer.status_code == 201, answer.text
    job_id = answer.json()["id"]
    for agent in agents:
        agent.live()
    until(client, job_id, lambda job: job["stage"] == "prepare")
    other = client.post("/api/v1/jobs", json=submission(nodes=9)).json()["id"]
    with coordinator.client(agents[0].token) as replica:
        bundle = replica.get(f"/api/v1/jobs/{job_id}/bundle").json()
        assert bundle["files"][0]["path"] == "data/train.jsonl"
        assert base64.urlsafe_b64decode(bundle["files"][0]["data"]) == data
        refused = replica.get(f"/api/v1/jobs/{other}/bundle")
        assert refused.status_code == 403
        assert replica.get(f"/api/v1/jobs/{job_id}").status_code == 403


def test_a_running_job_is_cancelled_and_its_replicas_are_free_again(
    client: httpx.Client, agents: list[Agent]
) -> None:
    for agent in agents:
        agent.hold = frozenset({Stage.TRAIN})
        agent.live()
    job_id = client.post("/api/v1/jobs", json=submission()).json()["id"]
    job = until(client, job_id, lambda job: job["stage"] == "train")
    assert job["state"] == "running"
    assert {r["role"] for r in client.get("/api/v1/replicas").json()["items"]} == {"member"}
    client.post(f"/api/v1/jobs/{job_id}/cancel").raise_for_status()
    until(client, job_id, lambda job: job["state"] == "cancelled")
    assert {r["role"] for r in client.get("/api/v1/replicas").json()["items"]} == {"spare"}
    for agent in agents:
        agent.hold = frozenset()
    client.post(f"/api/v1/jobs/{job_id}/retry").raise_for_status()
    job = until(client, job_id, lambda job: job["state"] in ("succeeded", "failed"))
    assert job["state"] == "succeeded" and job["attempts"] == 2
    assert job["attempt"]["number"] == 2 and [old["number"] for old in job["previous"]] == [1]
