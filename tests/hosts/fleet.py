"""A deployment as a user makes it: `rankcall up` on every host, and the `rankcall` command on any of them.

The first host is the master (the first of RANKCALL_PEERS). A replica is what runs on its host: it can be asked
to end, killed whole as a container is, and started again on what is on its disk. The test asks the coordinator's
API as somebody on the master's host does.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from namespaces import ROOT, Host

from agent import launcher
from coordinator.core.paths import Layout
from coordinator.core.process import environment_values
from coordinator.core.views import TERMINAL_STATES, JobView, ReplicaPage

TOKEN = "join-token-of-the-tests"
PORT = 8000
# Every agent imports torch and every command pydantic, on a machine that other tests may keep busy.
PATIENCE_S = 150.0
LOOK_S = 0.1
# Marks all that a replica's `up` starts, beside the network namespace it is in.
MARK = "TEST_REPLICA"
UP = (sys.executable, "-m", "coordinator.cli", "up")


@dataclass(frozen=True)
class Ran:
    """What a command did: exit code, data, talk."""

    code: int
    out: str
    err: str


@dataclass
class Replica:
    """What a host runs for its replica. `environment` is what its container was given."""

    host: Host
    folder: Path
    environment: dict[str, str]
    process: subprocess.Popen[bytes] | None = None
    said_before: int = 0

    @property
    def state(self) -> Path:
        return self.folder / "state"

    @property
    def layout(self) -> Layout:
        return Layout(self.state.resolve())

    @property
    def said(self) -> str:
        """What `up` and its services wrote so far."""
        log = self.folder / "up.log"
        return log.read_text(errors="replace") if log.exists() else ""

    @property
    def registered(self) -> bool:
        """Whether it has been registered since it was started."""
        return '"event": "registered"' in self.said[self.said_before :]

    def up(self, **more: str) -> None:
        """Start the replica; nothing of it may run."""
        self.said_before = len(self.said)
        with (self.folder / "up.log").open("ab") as log:
            self.process = self.host.popen(
                UP, env={**self.environment, **more}, stdout=log, stderr=subprocess.STDOUT
            )

    def ask(self, how: signal.Signals = signal.SIGTERM) -> None:
        """Ask `up` to end."""
        assert self.process is not None
        self.process.send_signal(how)

    def gone(self, within_s: float = PATIENCE_S) -> int:
        """The exit code of `up` that was asked to end; it must have left nothing behind."""
        assert self.process is not None
        code = self.process.wait(within_s)
        assert self.left() == [], self.said
        return code

    def vanish(self) -> None:
        """SIGKILL to everything at once, as when a container is taken away."""
        self.host.end()
        self.process = None

    def kill(self, pid: int) -> None:
        """SIGKILL to one process, and not before it is gone is this over."""
        os.kill(pid, signal.SIGKILL)
        while exists(pid):
            time.sleep(0.01)

    def training(self) -> set[int]:
        """Pids of all processes of attempts, shims included."""
        return {one.pid for ones in launcher.marked(self.layout).values() for one in ones}

    def left(self) -> list[str]:
        """Command lines of what runs for this replica: in its network namespace, or by the marks in the environment."""
        marked = {one.pid for one, value in environment_values(MARK) if value == str(self.folder)}
        everything = {*self.host.pids(), *marked, *self.training()}
        return [command_line(pid) for pid in sorted(everything) if exists(pid)]

    def pid_of(self, *words: str) -> int | None:
        """The process on this host whose command line is these words."""
        wanted = "".join(f"{word}\0" for word in words)
        return next((pid for pid in self.host.pids() if _arguments(pid) == wanted and exists(pid)), None)

    def run(self, *arguments: str, folder: Path | None = None, within_s: float = 300.0) -> Ran:
        """The `rankcall` command on this host, as somebody with a shell in the container types it."""
        process = self.start(*arguments, folder=folder)
        try:
            out, err = process.communicate(timeout=within_s)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            raise AssertionError(f"rankcall {arguments} did not end: {out!r} {err!r}") from None
        ran = Ran(process.returncode, out.decode(), err.decode())
        assert "Traceback" not in ran.err, ran.err
        return ran

    def start(self, *arguments: str, folder: Path | None = None) -> subprocess.Popen[bytes]:
        return self.host.popen(
            (sys.executable, "-m", "coordinator.cli", *arguments),
            env={"RANKCALL_TOKEN": TOKEN, "COLUMNS": "100"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=folder or ROOT,
        )


class Api:
    """The API that is served on a host, asked from there: no network of this machine's own is touched."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._client = httpx.Client(
            base_url=f"http://127.0.0.1:{PORT}/api/v1",
            headers={"Authorization": f"Bearer {TOKEN}"},
            timeout=30,
            trust_env=False,
            verify=False,  # certificates take 0.2 s to load and there is no TLS here
        )

    def get(self, path: str, **more: Any) -> httpx.Response:
        with self._host.entered():
            return self._client.get(path, **more)

    def post(self, path: str, **more: Any) -> httpx.Response:
        with self._host.entered():
            return self._client.post(path, **more)

    def close(self) -> None:
        self._client.close()


@dataclass
class Fleet:
    """All replicas of one deployment, in the order of their addresses."""

    replicas: Sequence[Replica]
    client: Api = field(repr=False)

    @property
    def master(self) -> Replica:
        return self.replicas[0]

    def up(self, *numbers: int) -> None:
        """Start these replicas, or all of them."""
        for number in numbers or range(len(self.replicas)):
            self.replicas[number].up()

    # --- what the coordinator knows

    def job(self, job_id: str) -> JobView:
        return JobView.model_validate_json(self.client.get(f"/jobs/{job_id}").raise_for_status().content)

    def page(self) -> ReplicaPage:
        """Who is registered; nobody while the coordinator does not answer."""
        try:
            answer = self.client.get("/replicas")
        except httpx.HTTPError:
            return ReplicaPage(items=())
        return ReplicaPage.model_validate_json(answer.raise_for_status().content)

    def alive(self) -> list[str]:
        """Host names of the replicas that are there."""
        return sorted(view.hostname for view in self.page().items if view.alive)

    def gathered(self, *names: str) -> None:
        """Wait until these hosts are there, as they were started last."""
        wanted = [replica for replica in self.replicas if replica.host.name in names]

        def there() -> bool:
            return all(replica.registered for replica in wanted) and set(names) <= set(self.alive())

        self.eventually(there, f"{names} registered")

    def ready(self, *names: str) -> None:
        """Wait until these hosts are there and have imported torch, so that no deadline runs against that."""

        def warm() -> bool:
            facts = {view.hostname: view.facts for view in self.page().items if view.alive}
            return all((known := facts.get(name)) is not None and known.torch_ready for name in names)

        self.gathered(*names)
        self.eventually(warm, f"torch imported on {names}")

    def until(self, job_id: str, good: Callable[[JobView], object], within_s: float = PATIENCE_S) -> JobView:
        """The job as soon as it is as wanted; a job that has ended otherwise is not waited for."""
        end = time.monotonic() + within_s
        while True:
            with contextlib.suppress(httpx.TransportError):
                job = self.job(job_id)
                if good(job):
                    return job
                assert job.state not in TERMINAL_STATES, (job.state, job.verdict, job.findings)
                assert time.monotonic() < end, f"{job.state}/{job.stage}: {job.verdict}\n{self.said}"
            assert time.monotonic() < end, self.said
            time.sleep(LOOK_S)

    def ended(self, job_id: str, within_s: float = PATIENCE_S) -> JobView:
        return self.until(job_id, lambda job: job.state in TERMINAL_STATES, within_s)

    def eventually(
        self, what: Callable[[], object], promise: str = "it", within_s: float = PATIENCE_S
    ) -> None:
        end = time.monotonic() + within_s
        while not what():
            assert time.monotonic() < end, f"{promise}: never came true\n{self.said}"
            time.sleep(LOOK_S)

    @property
    def said(self) -> str:
        return "\n".join(f"== {replica.host.name}\n{replica.said[-4000:]}" for replica in self.replicas)

    # --- what is on the replicas

    def stream(self, replica: Replica, job_id: str, name: str, attempt: int = 1) -> bytes:
        path = replica.layout.attempt(job_id, attempt).streams / name
        return path.read_bytes() if path.exists() else b""

    def mirrored(self, rank: int, job_id: str, name: str, attempt: int = 1) -> bytes:
        """The same stream as the coordinator has it."""
        parameters: dict[str, str | int] = {
            "rank": rank,
            "stream": name,
            "attempt": attempt,
            "limit": 1 << 24,
        }
        answer = self.client.get(f"/jobs/{job_id}/logs", params=parameters)
        return answer.content if answer.status_code == 200 else b""


@contextlib.contextmanager
def fleet(
    hosts: Sequence[Host], folder: Path, *, nodes: int | None = None, more: Mapping[str, str] | None = None
) -> Iterator[Fleet]:
    """Replicas that are not started yet. Those that still run at the end are asked to end and must leave nothing."""
    peers = ",".join(host.address for host in hosts)
    replicas = []
    for host in hosts:
        own = folder / host.name
        own.mkdir(parents=True)
        environment = {
            "RANKCALL_PEERS": peers,
            "RANKCALL_TOKEN": TOKEN,
            "RANKCALL_NODES": str(nodes or len(hosts)),
            "RANKCALL_STATE_DIR": str(own / "state"),
            "RANKCALL_AXOLOTL_WAIT_S": "0",
            "HF_HUB_OFFLINE": "1",
            "CUDA_VISIBLE_DEVICES": "",
            MARK: str(own),
            **(more or {}),
        }
        replicas.append(Replica(host, own, environment))
    with contextlib.closing(Api(hosts[0])) as client:
        made = Fleet(replicas, client)
        yield made
        running = [r for r in replicas if r.process is not None and r.process.poll() is None]
        for replica in running:
            replica.ask()
        for replica in running:
            assert replica.gone() == 0, replica.said


def exists(pid: int) -> bool:
    """Whether it runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def environment_of(pid: int) -> dict[str, str]:
    """What a process was started with; nothing when it is gone."""
    try:
        entries = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return {}
    return dict(entry.split("=", 1) for entry in entries if "=" in entry)


def command_line(pid: int) -> str:
    return f"{pid}: {_arguments(pid).strip(chr(0)).replace(chr(0), ' ')}"


def _arguments(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    return ""
