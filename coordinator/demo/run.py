"""`rankcall demo`: a real fine-tune on N replicas of this machine, each a `rankcall up` with an address of its own.

Nothing here knows how a job runs: it makes a model, starts the replicas at 127.0.0.1, 127.0.0.2 …, submits
as any user would, watches, and ends every process it started however it is left.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from coordinator.cli.console import say, write
from coordinator.cli.exits import Exit, Stop, of_job
from coordinator.cli.remote import Remote
from coordinator.cli.submission import Asked, build
from coordinator.cli.watch import follow, say_outcome
from coordinator.core import paths
from coordinator.core.clock import monotonic_s
from coordinator.core.process import ProcessId, end, environment_values, identify, is_alive, start
from coordinator.core.tied import tied
from coordinator.core.views import JobView
from coordinator.core.whereabouts import DEFAULT_PORT
from coordinator.core.words import counted
from coordinator.listeners import listener_of

# Marks every process of a demo (the training's own environment is cleaned of it; `rankcall up` ends that).
_MARK = "RANKCALL_DEMO"
_COORDINATOR_LIMIT_S = 120.0  # a cold import on a busy two-core machine takes 10 s
_MODEL_LIMIT_S = 900.0  # 20 s on two idle cores; several times that where others compute
_LOOK_S = 0.1
# `rankcall up` ends its replica in at most 8 s by itself.
_GRACE_S = 12.0
_KEPT_RUNS = 3
_MOST_REPLICAS = 200


class Interrupted(BaseException):
    """Ctrl-C or SIGTERM."""


@dataclass(frozen=True, slots=True)
class Replica:
    number: int
    address: str
    log: Path
    process: subprocess.Popen[bytes]


def run(*, nodes: int, stay: bool, port: int | None) -> int:
    """The exit code: 0 only when the job succeeded.

    Args:
        port: of the page; None takes 8000, or a free one where that is taken; 0 a free one.

    Raises:
        Stop: when it cannot be started.
    """
    if nodes > _MOST_REPLICAS:
        raise Stop(Exit.USAGE, f"The demo runs on one machine: at most {_MOST_REPLICAS} replicas.")
    page_port = _page_port(port)
    folder = _new_folder()
    signals = Signals()
    with signals.caught():
        processes: list[subprocess.Popen[bytes]] = []
        try:
            return of_job(_run(folder, nodes, page_port, stay, processes))
        except Interrupted:
            say("Interrupted: the demo ends everything it started.", "bold")
            return Exit.INTERRUPTED
        finally:
            _end(processes, folder, signals)
            say(f"What the demo made may be removed: {folder} (the {_KEPT_RUNS} newest are kept).")


def _run(
    folder: Path, nodes: int, port: int, stay: bool, processes: list[subprocess.Popen[bytes]]
) -> JobView:
    url = f"http://127.0.0.1:{port}"
    say(
        f"The demo: a small model is fine-tuned by {counted(nodes, 'replica')} on this machine. Everything is under {folder}."
    )
    model = _make_model(folder)
    processes.append(model)
    replicas: list[Replica] = []
    for number in range(nodes):
        replicas.append(_start_replica(folder, number, nodes, port))
        processes.append(replicas[-1].process)
    with Remote(url, token="") as remote:
        _wait_for_coordinator(remote, replicas)
        say(f"The page: {url}", "bold")
        _wait_for_model(model, folder)
        submitted = _submit(remote, folder / "job", nodes)
        job = follow(remote, submitted.id, lambda: _check_alive(replicas))
        _report(job, url)
        if stay:
            say(f"The page stays up at {url}/jobs/{job.id} until Ctrl-C.", "bold")
            with contextlib.suppress(Interrupted):
                _stay(replicas)
    return job


def _report(job: JobView, url: str) -> None:
    say_outcome(job, write)
    if job.state != "succeeded":
        say(f"What happened is at {url}/jobs/{job.id} while the demo runs (--stay keeps it up).")


def _submit(remote: Remote, folder: Path, nodes: int) -> JobView:
    prompts = tuple(str(pair["instruction"]) for pair in json.loads((folder / "prompts.json").read_text()))
    asked = Asked(config=folder / "demo.yml", nodes=nodes, gpus_per_node=0, name="demo", prompts=prompts)
    job, _ = remote.submit(build(asked), idempotency_key=folder.parent.name)
    say(f"Job {job.id} is submitted.")
    return job


def _make_model(folder: Path) -> subprocess.Popen[bytes]:
    """In a process of its own, beside the start of the replicas: it loads torch."""
    with (folder / "model.log").open("wb") as log:
        return start(
            tied([sys.executable, "-m", "coordinator.demo.model", str(folder / "job")]),
            environment=_environment(folder, {"CUDA_VISIBLE_DEVICES": ""}),
            output=log,
        )


def _wait_for_model(process: subprocess.Popen[bytes], folder: Path) -> None:
    if process.poll() is None:
        say("Making the model and its data …")
    give_up_s = monotonic_s() + _MODEL_LIMIT_S
    while process.poll() is None:
        if monotonic_s() > give_up_s:
            raise Stop(
                Exit.FAILED, f"The model was not made in {_MODEL_LIMIT_S:.0f} s; see {folder / 'model.log'}."
            )
        time.sleep(_LOOK_S)
    if process.returncode != 0:
        _say_tail(folder / "model.log")
        raise Stop(
            Exit.FAILED,
            f"The demo's model could not be made (exit code {process.returncode}); the end of its log is above.",
            hint="It needs the training stack: pip install 'rankcall[train]'.",
        )


def _start_replica(folder: Path, number: int, nodes: int, port: int) -> Replica:
    address = f"127.0.0.{number + 1}"
    state = folder / f"replica-{number}"
    state.mkdir()
    own = {
        "RANKCALL_STATE_DIR": str(state),
        "RANKCALL_ADDRESS": address,
        "RANKCALL_HOST": address,
        "RANKCALL_PORT": str(port),
        "RANKCALL_URL": f"http://127.0.0.1:{port}",
        "RANKCALL_NODES": str(nodes),
        "CUDA_VISIBLE_DEVICES": "",
        # the model and the data were made here: nobody needs to ask the hub for them, or for a token
        "HF_HUB_OFFLINE": "1",
        # importing torch once more would take two cores from the replicas, for a config that is known to be good
        "RANKCALL_AXOLOTL_WAIT_S": "0",
    }
    log = state / "up.log"
    with log.open("wb") as output:
        process = start(
            tied([sys.executable, "-m", "coordinator.cli", "up"]),
            environment=_environment(folder, own),
            output=output,
        )
    return Replica(number, address, log, process)


def _environment(folder: Path, own: Mapping[str, str]) -> dict[str, str]:
    """This process's environment without the settings of a real deployment."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("RANKCALL_")}
    return {**inherited, **own, _MARK: str(folder)}


def _wait_for_coordinator(remote: Remote, replicas: list[Replica]) -> None:
    give_up_s = monotonic_s() + _COORDINATOR_LIMIT_S
    while True:
        _check_alive(replicas)
        try:
            remote.replicas()
            return
        except Stop as stop:
            if stop.code != Exit.UNREACHABLE or monotonic_s() > give_up_s:
                _say_tail(replicas[0].log)
                raise
        time.sleep(_LOOK_S)


def _check_alive(replicas: list[Replica]) -> None:
    for replica in replicas:
        if (code := replica.process.poll()) is not None:
            _say_tail(replica.log)
            raise Stop(
                Exit.FAILED,
                f"Replica {replica.number} ended with exit code {code}; the end of its log is above.",
            )


def _stay(replicas: list[Replica]) -> None:
    while True:
        _check_alive(replicas)
        time.sleep(1.0)


def _say_tail(log: Path, lines: int = 20) -> None:
    with contextlib.suppress(OSError):
        for line in log.read_text(errors="replace").splitlines()[-lines:]:
            say(f"  | {line}", "dim")


def _end(processes: Sequence[subprocess.Popen[bytes]], folder: Path, signals: Signals) -> None:
    """SIGTERM to the replicas, which end their training and services; then whatever is left of the demo."""
    known = [found for p in processes if p.poll() is None and (found := identify(p.pid)) is not None]
    end(lambda: [p for p in known if is_alive(p)], grace_s=_GRACE_S, hurry=signals.again)
    end(lambda: _of_demo(folder), grace_s=1.0, hurry=signals.again)
    for process in processes:
        process.wait()


def _of_demo(folder: Path) -> list[ProcessId]:
    """By the environment they were started with: services by the demo's mark, training by its attempt's folder."""
    services = [p for p, mark in environment_values(_MARK) if mark == str(folder)]
    training = [
        p for p, at in environment_values("RANKCALL_ATTEMPT_DIR") if at.startswith(f"{folder}{os.sep}")
    ]
    return [p for p in {*services, *training} if p.pid != os.getpid()]


class Signals:
    """Ctrl-C and SIGTERM raise `Interrupted` once; a second one hurries the end along."""

    def __init__(self) -> None:
        self._count = 0

    def __call__(self, *_: object) -> None:
        self._count += 1
        if self._count == 1:
            raise Interrupted

    def again(self) -> bool:
        return self._count > 1

    @contextlib.contextmanager
    def caught(self) -> Iterator[None]:
        before = [(number, signal.signal(number, self)) for number in (signal.SIGINT, signal.SIGTERM)]
        try:
            yield
        finally:
            for number, handler in before:
                signal.signal(number, handler)


def _new_folder() -> Path:
    """A folder for this run; of earlier runs the newest few are kept, since their results may be wanted."""
    parent = paths.state_dir(os.environ.get("RANKCALL_STATE_DIR")) / "demo"
    try:
        parent.mkdir(parents=True, exist_ok=True)
        for old in sorted(p for p in parent.iterdir() if p.is_dir())[: -_KEPT_RUNS + 1 or None]:
            if not _of_demo(old):
                shutil.rmtree(old, ignore_errors=True)
        folder = parent / f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{os.getpid()}"
        folder.mkdir()
    except OSError as error:
        raise Stop(
            Exit.FAILED,
            f"{error.filename or parent} cannot be written: {error.strerror or error}.",
            hint="Set RANKCALL_STATE_DIR to a folder that can.",
        ) from None
    return folder


def _page_port(asked: int | None) -> int:
    """The asked one; else 8000, or a free one where that is taken."""
    if asked:
        if _is_free(asked):
            return asked
        holder = listener_of(asked) or "another process"
        raise Stop(
            Exit.FAILED, f"Port {asked} is in use by {holder}.", hint="Choose another one with --port."
        )
    if asked is None and _is_free(DEFAULT_PORT):
        return DEFAULT_PORT
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
