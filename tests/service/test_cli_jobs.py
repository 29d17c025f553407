"""The command line against a real coordinator: submit, watch, look, follow, download, cancel."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import threading
import time
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest
from commandline import Shell
from serving import TOKEN, VIEWER_TOKEN, Coordinator, running
from simulated_agent import STEPS, Agent

from coordinator.core.protocol import Stage

CONFIG = """\
base_model: org/model
datasets:
  - path: ./data/train.jsonl
    ds_type: json
    type: alpaca
micro_batch_size: 1
gradient_accumulation_steps: 1
num_epochs: 1
learning_rate: 0.0002
output_dir: ./outputs
"""


@pytest.fixture
def coordinator(tmp_path: Path) -> Iterator[Coordinator]:
    with running(tmp_path / "state") as served:
        yield served


@pytest.fixture
def shell(coordinator: Coordinator, tmp_path: Path) -> Shell:
    folder = tmp_path / "mine"
    (folder / "data").mkdir(parents=True)
    (folder / "config.yml").write_text(CONFIG)
    (folder / "data" / "train.jsonl").write_text('{"instruction": "a", "output": "b"}\n' * 40)
    return Shell(folder, coordinator.url)


@pytest.fixture
def agents(coordinator: Coordinator) -> Iterator[list[Agent]]:
    pair = [Agent(coordinator.url, number, TOKEN) for number in range(2)]
    yield pair
    for agent in pair:
        agent.end()


SUBMIT = ("submit", "config.yml", "--gpus-per-node", "0")


def test_submit_prints_the_id_alone_on_stdout(shell: Shell) -> None:
    ran = shell.run(*SUBMIT)
    assert ran.code == 0, ran.err
    job_id = ran.out.strip()
    assert len(job_id) == 8
    assert "1 file travels" in ran.err
    assert f"rankcall job {job_id} --watch" in ran.err


def test_a_watched_job_is_followed_to_its_end(shell: Shell, agents: list[Agent]) -> None:
    for agent in agents:
        agent.live()
    ran = shell.run(*SUBMIT, "--watch", "--name", "tried")
    assert ran.code == 0, ran.err
    assert len(ran.out.split()) == 1
    for stage in ("gather", "match", "tcp", "collective", "prepare", "train", "collect"):
        assert f"✓ {stage}" in ran.err
    assert f"step {STEPS}/{STEPS}" in ran.err
    assert "tried" in ran.err
    assert "succeeded" in ran.err
    assert "\x1b" not in ran.err


def test_watching_with_json_leaves_one_document_on_stdout(shell: Shell, agents: list[Agent]) -> None:
    for agent in agents:
        agent.live()
    ran = shell.run(*SUBMIT, "--watch", "--json")
    assert ran.code == 0, ran.err
    job = json.loads(ran.out)
    assert job["state"] == "succeeded"
    assert job["progress"]["step"] == STEPS


def test_interrupting_a_watch_detaches_and_cancels_nothing(shell: Shell) -> None:
    watching = shell.start(*SUBMIT, "--watch")
    assert watching.stdout is not None
    assert watching.stderr is not None
    job_id = watching.stdout.readline().strip()
    for line in watching.stderr:
        if "waiting" in line:
            break
    watching.send_signal(signal.SIGINT)
    _, err = watching.communicate(timeout=20)
    assert watching.returncode == 130
    assert f"rankcall job {job_id} --watch" in err
    assert json.loads(shell.run("job", job_id, "--json").out)["state"] == "queued"


def test_the_state_of_a_job_is_the_exit_code(shell: Shell) -> None:
    job_id = shell.run(*SUBMIT).out.strip()
    assert shell.run("job", job_id).code == 101
    assert shell.run("cancel", job_id).code == 0
    deadline = time.monotonic() + 10
    while (code := shell.run("job", job_id).code) == 101 and time.monotonic() < deadline:
        time.sleep(0.2)
    assert code == 103
    assert shell.run("job", "00000000").code == 102
    assert shell.run("logs", "00000000").code == 102
    assert shell.run("cancel", "00000000").code == 102
    assert shell.run("artifacts", job_id).code == 103


def test_a_deadline_has_a_code_of_its_own(shell: Shell) -> None:
    ran = shell.run(*SUBMIT, "--watch", "--deadline", "gather=1s")
    assert ran.code == 124, ran.err
    assert "SYS001" in ran.err


def test_lists_are_tables_for_people_and_documents_for_programs(shell: Shell, agents: list[Agent]) -> None:
    agents[0].live()
    job_id = shell.run(*SUBMIT, "--name", "listed").out.strip()
    table = shell.run("jobs")
    assert table.code == 0
    assert [line for line in table.out.splitlines() if job_id in line and "listed" in line]
    assert [item["id"] for item in json.loads(shell.run("jobs", "--json").out)["items"]] == [job_id]
    assert shell.run("jobs", "--state", "failed").out.count("\n") == 1
    nodes = shell.run("nodes")
    assert agents[0].replica_id in nodes.out
    assert "1 of 2" in nodes.err
    assert json.loads(shell.run("nodes", "--json").out)["items"][0]["id"] == agents[0].replica_id


def test_the_same_idempotency_key_gives_the_same_job(shell: Shell) -> None:
    first = shell.run(*SUBMIT, "--idempotency-key", "once")
    again = shell.run(*SUBMIT, "--idempotency-key", "once")
    assert first.out == again.out
    assert "already" in again.err
    other = shell.run(*SUBMIT, "--idempotency-key", "once", "--set", "num_epochs=2")
    assert other.code == 2
    assert "SYS105" in other.err


def test_a_log_is_printed_byte_for_byte(shell: Shell, agents: list[Agent]) -> None:
    agents[0].log = b"first\r 10%\r 20%\n\xff\x00\x1b[31mred\x1b[0m\nno line break at the end"
    for agent in agents:
        agent.live()
    job_id = shell.run(*SUBMIT, "--watch").out.strip()
    process = shell.start("logs", job_id)
    assert process.stdout is not None
    assert process.stdout.buffer.read() == agents[0].log
    assert process.wait(20) == 0
    assert shell.run("logs", job_id, "--rank", "1").out == "rank 1 trained\n"
    assert shell.run("logs", job_id, "--rank", "7").code == 102
    lines = [json.loads(line) for line in shell.run("logs", job_id, "--json").out.splitlines()]
    assert [line["text"] for line in lines][-1] == "no line break at the end"


def test_a_followed_log_goes_on_until_the_job_has_ended(shell: Shell, agents: list[Agent]) -> None:
    for agent in agents:
        agent.hold = frozenset({Stage.TRAIN})
        agent.live()
    job_id = shell.run(*SUBMIT).out.strip()
    following = shell.start("logs", job_id, "-f")
    time.sleep(2)
    assert following.poll() is None
    for agent in agents:
        agent.hold = frozenset()
    agents[0]._version = agents[1]._version = None  # they look again at once
    out, err = following.communicate(timeout=40)
    assert following.returncode == 0, err
    assert out == "rank 0 trained\n"


def test_artifacts_are_downloaded_resumed_and_checked(
    shell: Shell, agents: list[Agent], tmp_path: Path
) -> None:
    weights = bytes(range(256)) * 5000
    agents[0].files = {
        "outputs/adapter.safetensors": weights,
        "outputs/sub/config.json": b"{}",
        "outputs/empty": b"",
    }
    for agent in agents:
        agent.live()
    job_id = shell.run(*SUBMIT, "--watch").out.strip()
    listed = shell.run("artifacts", job_id)
    assert "outputs/adapter.safetensors" in listed.out
    target = tmp_path / "result"
    target.mkdir()
    (target / "adapter.safetensors.part").write_bytes(weights[:1000])
    (target / "sub").mkdir()
    (target / "sub" / "config.json.part").write_bytes(b"[")
    ran = shell.run("artifacts", job_id, "-o", str(target))
    assert ran.code == 0, ran.err
    assert (target / "adapter.safetensors").read_bytes() == weights
    assert (target / "sub" / "config.json").read_bytes() == b"{}"
    assert (target / "empty").read_bytes() == b""
    assert not list(target.rglob("*.part"))
    begun = {(u.path, u.offset_bytes) for u in agents[0].uploads_begun}
    assert ("outputs/adapter.safetensors", 1000) in begun
    uploads = len(agents[0].uploads_begun)
    assert shell.run("artifacts", job_id, "-o", str(target)).code == 0
    assert len(agents[0].uploads_begun) == uploads, "what is whole is not fetched again"


def test_a_file_that_changed_since_it_was_collected_is_not_handed_over(
    shell: Shell, agents: list[Agent], tmp_path: Path
) -> None:
    for agent in agents:
        agent.live()
    job_id = shell.run(*SUBMIT, "--watch").out.strip()
    agents[0].files = {path: b"x" * len(data) for path, data in agents[0].files.items()}
    ran = shell.run("artifacts", job_id, "-o", str(tmp_path / "result"))
    assert ran.code == 1
    assert "no longer the file that was collected" in ran.err
    assert not [path for path in (tmp_path / "result").rglob("*") if path.is_file()]


def test_a_report_is_one_document_to_keep(shell: Shell, agents: list[Agent]) -> None:
    for agent in agents:
        agent.live()
    job_id = shell.run(*SUBMIT, "--watch", "--name", "a_job").out.strip()
    printed = shell.run("report", job_id)
    assert printed.code == 0, printed.err
    for words in ("# a_job: succeeded", f"{STEPS} of {STEPS}", "machine_rank: 0", "## Attempt 1: succeeded"):
        assert words in printed.out
    written = shell.run("report", job_id, "-o", "report.md")
    assert (written.code, written.out) == (0, "")
    assert "## Result" in (shell.folder / "report.md").read_text()
    data = json.loads(shell.run("report", job_id, "--json").out)
    assert data["job"]["id"] == job_id and data["curve"][-1]["step"] == STEPS
    assert shell.run("report", job_id, "-o", "nowhere/report.md").code == 2
    assert shell.run("report", "00000000").code == 102


def test_no_coordinator_and_no_authority_are_exit_3(shell: Shell, coordinator: Coordinator) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        away = Shell(shell.folder, url).run("jobs")
        assert away.code == 3
        assert url in away.err
        assert away.out == ""
        assert Shell(shell.folder, url).run(*SUBMIT, "--watch").code == 3
    assert Shell(shell.folder, coordinator.url, "not-the-token").run("jobs").code == 3
    viewer = Shell(shell.folder, coordinator.url, VIEWER_TOKEN)
    assert viewer.run("jobs").code == 0
    assert viewer.run(*SUBMIT).code == 3


class Cable:
    """A TCP relay to the coordinator that can be cut."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._ends: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.create_connection(("127.0.0.1", self._target))
            self._ends += [near, far]
            for one, other in ((near, far), (far, near)):
                threading.Thread(target=self._pump, args=(one, other), daemon=True).start()

    @staticmethod
    def _pump(one: socket.socket, other: socket.socket) -> None:
        try:
            while data := one.recv(65536):
                other.sendall(data)
        except OSError:
            pass
        finally:
            other.close()

    def cut(self) -> None:
        for end in self._ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        self._ends.clear()

    def close(self) -> None:
        self._listener.close()
        self.cut()


def test_a_watch_survives_its_connection(shell: Shell, agents: list[Agent], coordinator: Coordinator) -> None:
    cable = Cable(int(coordinator.url.rpartition(":")[2]))
    watching = Shell(shell.folder, f"http://127.0.0.1:{cable.port}").start(*SUBMIT, "--watch")
    assert watching.stderr is not None
    for line in watching.stderr:
        if "waiting" in line:
            break
    cable.cut()
    for agent in agents:
        agent.live()
    time.sleep(0.3)
    cable.cut()
    out, err = watching.communicate(timeout=40)
    cable.close()
    assert watching.returncode == 0, err
    assert out.strip() in err
    assert err.count("✓ train ") == 1


def test_what_the_rules_refuse_is_not_sent(shell: Shell, coordinator: Coordinator) -> None:
    (shell.folder / "config.yml").write_text(CONFIG + "deepspeed: zero2_bf16.json\n")
    ran = shell.run(*SUBMIT)
    assert ran.code == 1
    assert "zero2_bf16.json" in ran.err
    assert ran.out == ""
    with coordinator.client() as client:
        assert client.get("/api/v1/jobs").json()["items"] == []


def test_what_the_coordinator_refuses_comes_with_its_findings(shell: Shell, coordinator: Coordinator) -> None:
    with coordinator.client() as client:
        answer: httpx.Response = client.post("/api/v1/jobs", json={"config": "a: [", "gpus_per_node": 0})
    assert answer.status_code == 422
    ran = shell.run("retry", shell.run(*SUBMIT).out.strip())
    assert ran.code == 1
    assert "SYS106" in ran.err


def test_what_answers_and_is_not_rankcall_is_said_to_be_so(shell: Shell) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), SimpleHTTPRequestHandler) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        ran = shell.run("jobs", RANKCALL_URL=f"http://127.0.0.1:{other.server_port}")
        other.shutdown()
    assert ran.code == 3
    assert f"at http://127.0.0.1:{other.server_port} is not rankcall" in ran.err and "RANKCALL_URL" in ran.err


def test_a_stream_that_is_not_there_is_answered_with_those_that_are(
    shell: Shell, agents: list[Agent]
) -> None:
    waiting = shell.run(*SUBMIT).out.strip()
    ran = shell.run("logs", waiting)
    assert ran.code == 102 and "has started nothing yet" in ran.err
    for agent in agents:
        agent.live()
    assert shell.run("job", waiting, "--watch").code == 0
    ran = shell.run("logs", waiting, "--stream", "train.lgo")
    assert ran.code == 102 and "no train.lgo" in ran.err and "train.log" in ran.err


def test_what_was_typed_wrong_is_exit_2_and_a_wrong_token_names_the_variable(shell: Shell) -> None:
    assert shell.run("jobs", "--state", "done").code == 2
    assert shell.run("check", "config.yml", "--set", "learning_rate").code == 2
    ran = shell.run("jobs", RANKCALL_TOKEN="mistyped")
    assert ran.code == 3 and "Set RANKCALL_TOKEN" in ran.err and "Bearer" not in ran.err


def test_names_and_messages_are_shown_as_they_are_written(shell: Shell) -> None:
    name = ":smile: [bold]x[/bold]"
    made = shell.run(*SUBMIT, "--name", name)
    assert name in made.err
    assert name in shell.run("jobs").out


def test_a_deadline_that_does_not_exist_is_answered_with_those_that_do(coordinator: Coordinator) -> None:
    with coordinator.client() as client:
        answer = client.post("/api/v1/preflights", json={"deadlines": {"gather": 6}})
    assert answer.status_code == 422 and "gather_s" in answer.json()["detail"]
