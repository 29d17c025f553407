"""`rankcall up` with real processes: roles, restarts, and an end that leaves nothing behind."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import psutil
import pytest
import torch_at_hand

# A busy two-core machine imports torch beside us.
SOON_S = 60.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def until(happened: Callable[[], object], within_s: float = SOON_S) -> None:
    end_s = time.monotonic() + within_s
    while not happened():
        assert time.monotonic() < end_s, "it did not happen in time"
        time.sleep(0.1)


class Up:
    """One replica: a `rankcall up` with a state folder of its own."""

    def __init__(self, state: Path, **environment: str) -> None:
        self.state = state
        state.mkdir(parents=True, exist_ok=True)
        self.log = state / "up.log"
        clean = {name: value for name, value in os.environ.items() if not name.startswith("RANKCALL_")}
        self.environment = {**clean, "RANKCALL_STATE_DIR": str(state), **environment}
        self.mark = f"{state}"
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "coordinator.cli", "up"],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def said(self, text: str) -> bool:
        return text in self.log.read_text(errors="replace")

    def service(self, module: str) -> psutil.Process | None:
        with contextlib.suppress(psutil.Error):
            for child in psutil.Process(self.process.pid).children():
                with contextlib.suppress(psutil.Error):
                    if child.cmdline()[1:] == ["-m", module]:
                        return child
        return None

    def everything(self) -> list[psutil.Process]:
        """What was started with this replica's state folder in its environment, and still runs."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                values = process.environ().values()
                if process.status() != psutil.STATUS_ZOMBIE and any(
                    str(self.state) in value for value in values
                ):
                    found.append(process)
        return found

    def end(self, number: signal.Signals = signal.SIGTERM, within_s: float = 20) -> int:
        self.process.send_signal(number)
        return self.process.wait(within_s)

    def clear(self) -> None:
        for process in self.everything():
            with contextlib.suppress(psutil.Error):
                process.kill()
        self.process.wait(10)


@pytest.fixture
def ups(tmp_path: Path) -> Iterator[Callable[..., Up]]:
    started: list[Up] = []
    python = str(torch_at_hand.interpreter(tmp_path))

    def start(state: Path, **environment: str) -> Up:
        started.append(Up(state, **{"RANKCALL_PYTHON": python, **environment}))
        return started[-1]

    yield start
    for up in started:
        up.clear()


def answers(url: str) -> bool:
    with contextlib.suppress(httpx.HTTPError):
        return httpx.get(f"{url}/healthz", trust_env=False).status_code == 200
    return False


def replicas(url: str) -> list[dict[str, object]]:
    with contextlib.suppress(httpx.HTTPError):
        items: list[dict[str, object]] = httpx.get(f"{url}/api/v1/replicas", trust_env=False).json()["items"]
        return [item for item in items if item["alive"]]
    return []


TRAINING = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
time.sleep(600)
"""


def leave_training_behind(state: Path) -> subprocess.Popen[bytes]:
    """As a launcher would start it and a supervisor that was killed would leave it: deaf to SIGTERM, with a child."""
    folder = state / "jobs" / "0badcafe" / "attempt-1"
    folder.mkdir(parents=True)
    environment = {**os.environ, "RANKCALL_ATTEMPT_DIR": str(folder)}
    return subprocess.Popen([sys.executable, "-c", TRAINING], env=environment, start_new_session=True)


def test_a_replica_alone_serves_and_registers_itself(ups: Callable[..., Up], tmp_path: Path) -> None:
    port = free_port()
    up = ups(tmp_path / "a", RANKCALL_PORT=str(port))
    url = f"http://127.0.0.1:{port}"
    until(lambda: len(replicas(url)) == 1)
    assert replicas(url)[0]["beside_coordinator"] is True
    assert up.end() == 0
    assert not up.everything()


def test_what_dies_is_started_again(ups: Callable[..., Up], tmp_path: Path) -> None:
    port = free_port()
    up = ups(tmp_path / "a", RANKCALL_PORT=str(port))
    url = f"http://127.0.0.1:{port}"
    until(lambda: len(replicas(url)) == 1)
    (first,) = replicas(url)
    for module in ("coordinator", "agent"):
        before = up.service(module)
        assert before is not None
        before.kill()
        until(lambda module=module, before=before: up.service(module) not in (None, before))  # type: ignore[misc]
    until(lambda: [r for r in replicas(url) if r["incarnation"] == 2])
    (again,) = replicas(url)
    assert again["id"] == first["id"]


def test_ctrl_c_ends_training_that_is_deaf_to_sigterm_within_ten_seconds(
    ups: Callable[..., Up], tmp_path: Path
) -> None:
    state = tmp_path / "a"
    training = leave_training_behind(state)
    up = ups(state, RANKCALL_PORT=str(free_port()))
    until(lambda: up.service("agent"))
    begun_s = time.monotonic()
    assert up.end(signal.SIGINT) == 130
    assert time.monotonic() - begun_s < 10
    assert training.wait(1) == -signal.SIGKILL
    assert not up.everything()


@pytest.mark.long
def test_training_of_another_replica_on_the_same_machine_is_left_alone(
    ups: Callable[..., Up], tmp_path: Path
) -> None:
    other = leave_training_behind(tmp_path / "a-and-more")
    up = ups(tmp_path / "a", RANKCALL_PORT=str(free_port()))
    until(lambda: up.service("agent"))
    up.end()
    assert other.poll() is None
    os.killpg(other.pid, signal.SIGKILL)
    other.wait()
    Up.clear(up)
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("RANKCALL_ATTEMPT_DIR", "").startswith(str(tmp_path)):
                process.kill()


def test_a_killed_supervisor_takes_its_services_along_but_no_training(
    ups: Callable[..., Up], tmp_path: Path
) -> None:
    state = tmp_path / "a"
    up = ups(state, RANKCALL_PORT=str(free_port()))
    until(lambda: up.service("agent") and up.service("coordinator"))
    training = leave_training_behind(state)
    services = [up.service("agent"), up.service("coordinator")]
    up.process.kill()
    up.process.wait()
    psutil.wait_procs([service for service in services if service is not None], timeout=20)
    assert not any(service is not None and service.is_running() for service in services)
    assert training.poll() is None
    again = ups(state, RANKCALL_PORT=up.environment["RANKCALL_PORT"])
    until(lambda: again.service("agent"))
    again.end()
    assert training.wait(1) is not None
    assert not again.everything()


def test_a_second_one_in_the_same_state_folder_is_refused(ups: Callable[..., Up], tmp_path: Path) -> None:
    up = ups(tmp_path / "a", RANKCALL_PORT=str(free_port()))
    until(lambda: up.service("coordinator"))
    second = ups(tmp_path / "a", RANKCALL_PORT=str(free_port()))
    assert second.process.wait(30) == 1
    assert up.said("another `rankcall up` uses")
    assert up.process.poll() is None


def test_a_port_in_use_is_said_with_who_has_it(ups: Callable[..., Up], tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        up = ups(tmp_path / "a", RANKCALL_PORT=str(taken.getsockname()[1]))
        assert up.process.wait(30) == 1
    assert up.said(f"(pid {os.getpid()})")
    assert not up.said("Traceback") and not up.said("ending")


@pytest.mark.long
def test_a_start_that_fails_ends_no_training_that_was_there_before(
    ups: Callable[..., Up], tmp_path: Path
) -> None:
    state = tmp_path / "a"
    training = leave_training_behind(state)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        up = ups(state, RANKCALL_PORT=str(taken.getsockname()[1]))
        assert up.process.wait(30) == 1
    again = ups(state, RANKCALL_PORT=str(free_port()), RANKCALL_TOKEN="short")
    assert again.process.wait(60) == 2
    assert again.said("RANKCALL_TOKEN is shorter") and again.said(
        "coordinator cannot start with these settings"
    )
    assert training.poll() is None
    last = ups(state, RANKCALL_PORT=str(free_port()))
    until(lambda: last.service("agent"))
    last.end()
    assert training.wait(1) is not None and not last.everything()


def test_a_service_that_cannot_start_with_its_settings_is_not_started_again(
    ups: Callable[..., Up], tmp_path: Path
) -> None:
    up = ups(tmp_path / "a", RANKCALL_NODES="5000", RANKCALL_PORT=str(free_port()))
    assert up.process.wait(60) == 2
    assert up.said("RANKCALL_NODES") and not up.said("started again")
    assert not up.everything()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("RANKCALL_PORT", "web"), ("RANKCALL_PEERS", "10.0.0.4:web"), ("RANKCALL_URL", "ftp://x"),
        ("RANKCALL_PEERS", "10.0.0.1:99999"), ("RANKCALL_ADDRESS", "999.1.1.1"), ("RANKCALL_ADDRESS", "foo"),
        ("RANKCALL_DATA_ROOTS", "rel"), ("RANKCALL_ORDINAL", "x"), ("RANKCALL_ORDINAL", "-1"),
    ],
)  # fmt: skip
def test_a_setting_that_cannot_be_understood_is_named(
    ups: Callable[..., Up], tmp_path: Path, name: str, value: str
) -> None:
    up = ups(tmp_path / "a", **{name: value})
    assert up.process.wait(30) == 2
    assert up.said(name)
    assert not up.everything()
    assert not up.said("Traceback")


def test_replicas_find_each_other_by_peers_and_each_serves_the_page(
    ups: Callable[..., Up], tmp_path: Path
) -> None:
    port = free_port()
    told = {"RANKCALL_PORT": str(port), "RANKCALL_PEERS": "127.0.0.1,127.0.0.2", "RANKCALL_NODES": "2"}
    second = ups(tmp_path / "b", RANKCALL_ADDRESS="127.0.0.2", **told)
    until(lambda: second.service("agent.proxy") is not None)  # it must not take the first one's port
    until(lambda: second.said("replica: the coordinator is at http://127.0.0.1"))
    first = ups(tmp_path / "a", RANKCALL_ADDRESS="127.0.0.1", **told)
    until(lambda: len(replicas(f"http://127.0.0.1:{port}")) == 2)
    until(lambda: len(replicas(f"http://127.0.0.2:{port}")) == 2)
    assert first.end() == 0
    assert second.end() == 0
    assert not first.everything() + second.everything()


@pytest.mark.long
def test_the_lease_goes_to_another_replica_when_the_master_dies(
    ups: Callable[..., Up], tmp_path: Path
) -> None:
    port = free_port()
    told = {
        "RANKCALL_PORT": str(port),
        "RANKCALL_SHARED_DIR": str(tmp_path / "shared"),
        "RANKCALL_NODES": "2",
    }
    both = [
        ups(tmp_path / name, RANKCALL_ADDRESS=address, RANKCALL_HOST=address, **told)
        for name, address in (("a", "127.0.0.1"), ("b", "127.0.0.2"))
    ]
    until(lambda: any(up.service("coordinator") for up in both))
    master = next(up for up in both if up.service("coordinator"))
    (other,) = [up for up in both if up is not master]
    until(lambda: len(replicas(f"http://{master.environment['RANKCALL_ADDRESS']}:{port}")) == 2)
    os.kill(master.process.pid, signal.SIGSTOP)
    until(lambda: other.service("coordinator"))
    until(lambda: len(replicas(f"http://{other.environment['RANKCALL_ADDRESS']}:{port}")) >= 1)
    os.kill(master.process.pid, signal.SIGCONT)
    until(lambda: master.service("coordinator") is None and master.said("serves no more"))
    until(lambda: len(replicas(f"http://{other.environment['RANKCALL_ADDRESS']}:{port}")) == 2)


def test_as_pid_1_it_buries_whatever_is_orphaned_to_it(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.fail("needs root: a pid namespace is made")
    state = tmp_path / "a"
    state.mkdir()
    clean = {name: value for name, value in os.environ.items() if not name.startswith("RANKCALL_")}
    environment = {**clean, "RANKCALL_STATE_DIR": str(state), "RANKCALL_PORT": str(free_port())}
    log = (state / "up.log").open("wb")
    unshare = subprocess.Popen(
        ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-m", "coordinator.cli", "up"],
        env=environment,
        stdout=log,
        stderr=subprocess.STDOUT,
    )
    try:
        until(lambda: psutil.Process(unshare.pid).children())
        (first,) = psutil.Process(unshare.pid).children()
        until(lambda: len(first.children()) >= 2)
        orphan = 'sh -c "sleep 0.2 & sleep 0.1 &" &'
        subprocess.run(
            ["nsenter", "--target", str(first.pid), "--pid", "--mount", "sh", "-c", orphan], check=True
        )
        time.sleep(2)
        zombies = [c for c in first.children(recursive=True) if c.status() == psutil.STATUS_ZOMBIE]
        assert not zombies
        first.terminate()
        assert unshare.wait(20) == 0
    finally:
        unshare.kill()
        unshare.wait()
