"""`rankcall doctor`: this container looked over, as findings with codes.

What an agent would learn of it comes from `python -m agent.inspection` and is judged as the match stage
would judge it; the rest (ports, state folder, the way to the coordinator, leftovers) is looked at here.
"""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ValidationError

from coordinator.cli.console import say, say_finding, write, write_json
from coordinator.cli.exits import Exit, Stop
from coordinator.cli.remote import Remote
from coordinator.core import paths
from coordinator.core.catalogue import finding
from coordinator.core.lease import LeaseFolder
from coordinator.core.process import environment_values, start
from coordinator.core.protocol import Facts, Finding
from coordinator.core.whereabouts import BadHint, Hints, Place, decide, hints_of, recogniser, resolve
from coordinator.core.words import are, size
from coordinator.listeners import listener_on
from coordinator.match import match

_RENDEZVOUS_PORT = 29500
_OURS = ("coordinator", "agent.proxy")  # `python -m …`
_NEEDED = ("torch", "accelerate", "axolotl")
_NETWORK_FILESYSTEMS = ("nfs", "cifs", "smb", "ceph", "glusterfs", "lustre", "9p", "fuse.")
_INSPECTION_LIMIT_S = 120.0


class Examination(BaseModel):
    """What `--json` prints."""

    verdict: str
    findings: tuple[Finding, ...]
    facts: Facts | None
    coordinator: str | None


@dataclass(frozen=True, slots=True)
class Container:
    """What is looked at."""

    environment: Mapping[str, str]
    state: Path
    hints: Hints


def examine(*, json: bool) -> None:
    """Prints the findings; exit 1 where one is an error."""
    environment = dict(os.environ)
    try:
        hints = hints_of(environment)
    except BadHint as error:
        found: list[Finding] = [finding("SYS029", str(error))]
        _report(Examination(verdict="reject", findings=tuple(found), facts=None, coordinator=None), json)
        return
    container = Container(environment, paths.state_dir(environment.get("RANKCALL_STATE_DIR")), hints)
    found = [*_settings(container), *_state(container), *_ports(container), *_leftovers(container)]
    where, reached = _coordinator(container)
    facts, problems = _facts(environment)
    found += [*reached, *problems]
    if facts is not None:
        # Whether torch can be imported is the agent's probe to find out: seconds, and a GPU context.
        ready = facts.model_copy(update={"torch_ready": "torch" in facts.packages})
        found += [*_stack(facts), *match({socket.gethostname(): ready}, gpus_per_node=None)]
    verdict = "reject" if any(one.severity == "error" for one in found) else "accept"
    _report(Examination(verdict=verdict, findings=tuple(found), facts=facts, coordinator=where), json)


def _report(examination: Examination, json: bool) -> None:
    if json:
        write_json(examination)
    else:
        if examination.facts is not None:
            _write_facts(examination.facts)
        write(f"coordinator: {examination.coordinator or 'not known'}")
        for one in examination.findings:
            say_finding(one)
        if not examination.findings:
            say("Nothing is wrong here.", "green")
    if examination.verdict == "reject":
        raise Stop(Exit.FAILED)


def _write_facts(facts: Facts) -> None:
    packages = ", ".join(f"{name} {version}" for name, version in facts.packages.items())
    write(f"python {facts.python}, {facts.platform}, {facts.cpu_count} CPUs")
    write(f"packages: {packages or 'none of the training stack'}")
    gpus = ", ".join(f"{gpu.name} ({size(gpu.memory_bytes)})" for gpu in facts.gpus)
    driver = f", driver {facts.driver}" if facts.driver else ""
    write(f"GPUs: {gpus or 'none, trains on the CPU'}{driver}")
    for disk in facts.disks:
        write(f"{disk.purpose}: {disk.path}, {size(disk.free_bytes)} free of {size(disk.total_bytes)}")


def _settings(container: Container) -> Iterator[Finding]:
    hints = container.hints
    if (hints.nodes or 1) < 2:
        return
    if not (hints.url or hints.peers or hints.shared_dir):
        yield finding(
            "SYS026", f"RANKCALL_NODES is {hints.nodes}, and nothing says where the coordinator is."
        )
    if not container.environment.get("RANKCALL_TOKEN"):
        yield finding("SYS025", f"RANKCALL_NODES is {hints.nodes}, and RANKCALL_TOKEN is not set.")


def _state(container: Container) -> Iterator[Finding]:
    state = container.state
    try:
        state.mkdir(parents=True, exist_ok=True, mode=0o700)
        probe = state / f".doctor-{os.getpid()}"
        probe.write_bytes(b"x")
        probe.unlink()
    except OSError as error:
        yield finding("SYS021", f"{state} cannot be written: {error.strerror or error}.", file=str(state))
        return
    kind = _filesystem(state)
    if kind.startswith(_NETWORK_FILESYSTEMS):
        yield finding("SYS022", f"{state} lies on {kind}.", file=str(state))


def _filesystem(path: Path) -> str:
    """The type of the file system a path lies on; empty where that cannot be learned."""
    import psutil

    mounts = [(part.mountpoint, part.fstype) for part in psutil.disk_partitions(all=True)]
    holding = [(point, kind) for point, kind in mounts if path.resolve().is_relative_to(point)]
    return max(holding, key=lambda mount: len(mount[0]), default=("", ""))[1]


def _ports(container: Container) -> Iterator[Finding]:
    port = container.hints.port
    holder = listener_on(port)
    if holder is not None and not any(module in holder.command for module in _OURS):
        yield finding("SYS020", f"{holder} listens on port {port}, where rankcall would serve the page.")
    rendezvous = listener_on(_RENDEZVOUS_PORT)
    if rendezvous is not None:
        yield finding(
            "SYS020",
            f"{rendezvous} listens on port {_RENDEZVOUS_PORT}, the training's rendezvous.",
            severity="note",
            hint="Another port will be agreed on by all replicas; end that process if it is a leftover.",
        )


def _leftovers(container: Container) -> Iterator[Finding]:
    layout = paths.Layout(container.state)
    jobs = f"{layout.jobs}{os.sep}"
    training = [p.pid for p, at in environment_values("RANKCALL_ATTEMPT_DIR") if at.startswith(jobs)]
    if training and not _is_locked(layout.agent_lock):
        yield finding(
            "SYS027",
            f"{are(len(training), 'process')} left here of a training, without an agent (pid {training[0]} …).",
            evidence={"pids": list(training[:32])},
        )


def _is_locked(path: Path) -> bool:
    """Whether a process holds this lock file, as an agent does while it lives."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _coordinator(container: Container) -> tuple[str | None, list[Finding]]:
    """Where the coordinator is, and what is wrong with the way to it."""
    place = _place(container.hints)
    if place is None:
        return None, [finding("SYS023", "Where the coordinator is cannot be told yet.")]
    try:
        with Remote(place.url) as remote:
            remote.replicas()
    except Stop as stop:
        if stop.message.startswith("Not authorised"):
            return place.url, [finding("SYS024", f"{place.url}: {stop.message}")]
        # A replica that is about to be its own coordinator has none yet, and that is no fault.
        if place.here:
            return f"{place.url} (here, not started: {place.how})", []
        return place.url, [finding("SYS023", stop.message.removeprefix("SYS023: "))]
    return f"{place.url} ({place.how})", []


def _place(hints: Hints) -> Place | None:
    if hints.shared_dir is not None and hints.url is None and not hints.peers:
        try:
            lease = LeaseFolder(hints.shared_dir).newest()
        except OSError:
            return None
        return Place(lease.url, here=False, how="the lease") if lease is not None and lease.url else None
    place = decide(hints, resolve, recogniser(hints))
    return place if isinstance(place, Place) else None


def _facts(environment: Mapping[str, str]) -> tuple[Facts | None, list[Finding]]:
    process = start(
        [sys.executable, "-m", "agent.inspection"], environment=environment, output=subprocess.PIPE
    )
    try:
        output, _ = process.communicate(timeout=_INSPECTION_LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return None, [finding("ENV028", "This container's facts could not be learned in time.")]
    lines = output.decode(errors="replace").strip().splitlines()
    try:
        return Facts.model_validate_json(lines[-1] if lines else ""), []
    except ValidationError:
        why = lines[-1] if lines else f"exit code {process.returncode}"
        return None, [finding("SYS029" if process.returncode == 2 else "ENV028", why)]


def _stack(facts: Facts) -> Iterator[Finding]:
    missing = [name for name in _NEEDED if name not in facts.packages]
    if missing:
        yield finding("SYS028", f"Not installed: {', '.join(missing)}.", evidence={"missing": [*missing]})
