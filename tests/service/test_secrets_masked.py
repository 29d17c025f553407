"""A secret of a config or the surroundings is shown to nobody: not in a job, its files, findings, events or errors."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from least import CONFIG
from serving import TOKEN, VIEWER_TOKEN, Coordinator, running
from simulated_agent import Agent

from coordinator.core.redact import Redactor, secrets_within

IN_CONFIG = 'co"met-secret\\value-1'
IN_OVERRIDE = "hub-secret-value-22"
IN_ENVIRONMENT = "environment-secret-333"
IN_URL = "http://ann:pass-word-4444@proxy.example:3128"
SHAPE = "hf_" + "a1B2" * 9
SECRETS = (IN_CONFIG, IN_OVERRIDE, IN_ENVIRONMENT, "pass-word-4444", SHAPE)
SUBMISSION = {
    "config": CONFIG
    + f"comet_api_key: {json.dumps(IN_CONFIG)}\nwandb_name: of {SHAPE}\nwandb_entity: {IN_ENVIRONMENT}\n"
    + f"hub_model_id: {IN_URL}\nspecial_tokens:\n  pad_token: '<|end_of_text|>'\n",
    "overrides": [f"hub_token={IN_OVERRIDE}"],
    "nodes": 1,
    "gpus_per_node": 0,
    "allow": ["CFG813", "CFG801"],
}


@pytest.fixture
def coordinator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Coordinator]:
    monkeypatch.setenv("WANDB_API_KEY", IN_ENVIRONMENT)
    with running(tmp_path, nodes=1) as served:
        yield served


def assert_hidden(text: str) -> None:
    for secret in SECRETS:
        assert secret not in text and json.dumps(secret)[1:-1] not in text


@pytest.fixture
def agent(coordinator: Coordinator) -> Iterator[Agent]:
    agent = Agent(coordinator.url, 0, TOKEN)
    agent.live()
    yield agent
    agent.end()


@pytest.mark.parametrize("token", [TOKEN, VIEWER_TOKEN])
@pytest.mark.usefixtures("agent")
def test_nobody_reads_a_secret_of_a_job(token: str, coordinator: Coordinator) -> None:
    with coordinator.client() as admin:
        submitted = admin.post("/api/v1/jobs", json=SUBMISSION)
        assert_hidden(submitted.text)
        assert submitted.status_code == 201, submitted.text
        job = f"/api/v1/jobs/{submitted.json()['id']}"
    with coordinator.client(token) as client:
        while client.get(job).json()["state"] not in ("succeeded", "failed"):
            pass
        rendered = client.get(f"{job}/files")
        assert rendered.status_code == 200
        for path in ("", "/findings", "/files", "/links", "/report", "/report?format=json"):
            assert_hidden(client.get(job + path).text)
        for path in ("/api/v1/jobs", "/api/v1/events", "/api/v1/replicas"):
            assert_hidden(client.get(path).text)
        with client.stream("GET", f"{job}/events") as stream:
            assert_hidden(next(piece for piece in stream.iter_text() if "event: job" in piece))
    axolotl = next(f for f in rendered.json()["files"] if f["path"] == "axolotl.yaml")["content"]
    # As long as it was, and nothing else is touched.
    assert "*" * len(IN_OVERRIDE) in axolotl and f"of {'*' * len(SHAPE)}" in axolotl
    assert "<|end_of_text|>" in axolotl and "proxy.example:3128" in axolotl


def test_a_refusal_repeats_no_secret(coordinator: Coordinator) -> None:
    refused = {**SUBMISSION, "config": SUBMISSION["config"] + "micro_batchsize: 8\n", "allow": []}  # type: ignore[operator]
    with coordinator.client() as client:
        for path in ("/api/v1/jobs", "/api/v1/checks"):
            answer = client.post(path, json=refused)
            assert answer.json()["findings"]
            assert_hidden(answer.text)


def test_the_replica_itself_gets_the_real_ones(coordinator: Coordinator, agent: Agent) -> None:
    seen: list[str] = []
    with coordinator.client() as admin:
        job_id = admin.post("/api/v1/jobs", json=SUBMISSION).json()["id"]
        while admin.get(f"/api/v1/jobs/{job_id}").json()["state"] not in ("succeeded", "failed"):
            presence = coordinator.services.roster.get(agent.replica_id)
            if presence is not None and presence.plan is not None:
                seen += [file.content for file in presence.plan.files if file.path == "axolotl.yaml"]
    assert seen and all(IN_OVERRIDE in content and SHAPE in content for content in seen)


def test_what_a_config_calls_secret_is_found_and_the_vocabulary_is_not() -> None:
    config = {
        "hub_token": "secret-value-1",
        "plugins": [{"swanlab_lark_secret": "secret-value-2"}],
        "database": {"password": "secret-value-3"},
        "pad_token": "<|end_of_text|>",
        "special_tokens": {"token": "<|not_a_secret|>"},
        "tokens": ["<|one_more_one|>"],
        "max_tokens": "1234567890",
        "hf_use_auth_token": True,
    }
    assert secrets_within(config) == ("secret-value-1", "secret-value-2", "secret-value-3")


def test_a_secret_is_masked_as_it_is_and_as_it_stands_in_json() -> None:
    redactor = Redactor([IN_CONFIG])
    assert redactor.mask_text(IN_CONFIG) == "*" * len(IN_CONFIG)
    quoted = json.dumps({"key": IN_CONFIG})
    assert json.loads(redactor.mask_text(quoted))["key"] == "*" * (len(quoted) - len('{"key": ""}'))
