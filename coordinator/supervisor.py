"""Keeps the processes of this replica's role running: coordinator and agent, or agent and page proxy.

Turned to a role by `up.py` whenever that changes. Ends what it started, or all of this replica, training included;
a process that dies is started again after a pause that grows.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from coordinator.claim import CannotStart, check_port
from coordinator.core import paths
from coordinator.core.process import (
    ProcessId,
    descendants,
    end,
    environment_values,
    identify,
    start,
)
from coordinator.core.tied import LEAVE, tied
from coordinator.core.whereabouts import (
    Hints,
    Place,
    Undecided,
    http_url,
    own_url,
    told_host,
)

_CANNOT_START = 2  # the exit code of coordinator, agent and proxy for settings that cannot be
_WILDCARDS = frozenset({"", "0.0.0.0", "::"})  # noqa: S104  (compared with, never bound)


@dataclass(frozen=True, slots=True)
class UpTimes:
    """Judgements of the supervisor, in seconds.

    Attributes:
        first_restart_s: after the first death in a row; then doubling up to `slowest_restart_s`.
        healthy_s: who lived so long starts anew at `first_restart_s`.
        training_grace_s: between SIGTERM and SIGKILL for the agent and the training; a trainer that is
            saving needs a moment, a container gets 10 s before its runtime kills it.
        service_grace_s: the same for coordinator and proxy, which end their connections.
        port_wait_s: a predecessor that is just ending may still hold the port.
        repeat_s: a wait that goes on is mentioned again so often.
    """

    first_restart_s: float = 0.2
    slowest_restart_s: float = 30.0
    healthy_s: float = 60.0
    training_grace_s: float = 5.0
    service_grace_s: float = 3.0
    port_wait_s: float = 5.0
    repeat_s: float = 60.0


def say(text: str) -> None:
    print(f"rankcall up: {text}", file=sys.stderr, flush=True)


def restart_delay_s(deaths: int, times: UpTimes) -> float:
    """How long to wait after the so many-th death in a row (from 1)."""
    return float(min(times.first_restart_s * 2 ** min(deaths - 1, 16), times.slowest_restart_s))


@dataclass(slots=True)
class Service:
    """One process that is kept running while it is wanted."""

    name: str
    module: str
    environment: dict[str, str]
    running: subprocess.Popen[bytes] | None = None
    started_s: float = 0.0
    deaths: int = 0
    not_before_s: float = 0.0


@dataclass(slots=True)
class Supervisor:
    """Keeps the processes of the present role; see `run`."""

    environment: Mapping[str, str]
    hints: Hints
    state: Path
    times: UpTimes = UpTimes()
    services: dict[str, Service] = field(default_factory=dict)
    place: Place | Undecided | None = None
    waiting_since_s: float = 0.0

    def wanted(self, place: Place | Undecided) -> dict[str, Service]:
        """The processes of a role. While it is unknown an agent that runs already stays."""
        if isinstance(place, Undecided):
            return {name: service for name, service in self.services.items() if name == "agent"}
        if place.here:
            agent = {
                **self.environment,
                "RANKCALL_URL": ",".join((self._own_url(), *place.others)),
                "RANKCALL_BESIDE_COORDINATOR": "1",
            }
            return {
                "coordinator": Service("coordinator", "coordinator", dict(self.environment)),
                "agent": Service("agent", "agent", agent),
            }
        elsewhere = {**self.environment, "RANKCALL_URL": ",".join(place.urls)}
        elsewhere.pop("RANKCALL_BESIDE_COORDINATOR", None)
        return {
            "agent": Service("agent", "agent", elsewhere),
            "proxy": Service("proxy", "agent.proxy", elsewhere),
        }

    def _bind_address(self) -> str:
        """Where the coordinator will listen (`coordinator/settings.py`); IPv4 stands for both families."""
        host = told_host(self.environment) or ""
        if host in _WILDCARDS:
            return "0.0.0.0" if self.environment.get("RANKCALL_TOKEN") else "127.0.0.1"  # noqa: S104
        return host

    def _own_url(self) -> str:
        host = told_host(self.environment) or ""
        return (
            own_url(self.hints) if host in _WILDCARDS else http_url(host, self.hints.port, tls=self.hints.tls)
        )

    def take_role(self, place: Place | Undecided, now_s: float) -> None:
        """Turns to the processes of a role.

        Raises:
            CannotStart: when this replica is to serve from the start and its port is taken.
        """
        before = self.place
        if isinstance(place, Place) and place.here and place.others and not _shares_a_store(self.environment):
            raise CannotStart(
                "RANKCALL_URL names several coordinators, which must share a PostgreSQL database: set RANKCALL_DATABASE_URL "
                "to it (postgresql+psycopg://…), or leave one address in RANKCALL_URL"
            )
        if isinstance(place, Place) and place.here and before is None:
            check_port(self._bind_address(), self.hints.port, self.times.port_wait_s)
        self.place = place
        self.waiting_since_s = now_s
        if isinstance(place, Undecided):
            say(f"waiting: {place.why}")
        elif place.here:
            say(f"master: {place.how}; the coordinator is at {self._own_url()}")
        else:
            say(f"replica: the coordinator is at {place.url} ({place.how})")
        wanted = self.wanted(place)
        for name in [*self.services]:
            # One that was told of another coordinator starts anew; training goes on meanwhile.
            if name not in wanted or wanted[name].environment != self.services[name].environment:
                self._stop(self.services.pop(name))
        for name, service in wanted.items():
            self.services.setdefault(name, service)
        if isinstance(before, Place) and before.here and isinstance(place, Place) and not place.here:
            say("another replica has become master; this one serves no more")

    def _stop(self, service: Service) -> None:
        """Ends that process alone: below an agent there may be training, which goes on."""
        popen, service.running = service.running, None
        if popen is None or popen.poll() is not None:
            return
        if service.name == "agent":
            popen.send_signal(LEAVE)
            try:
                popen.wait(self.times.service_grace_s)
            except subprocess.TimeoutExpired:
                popen.kill()
        else:
            end(lambda: _alone(popen), grace_s=self.times.service_grace_s)
        popen.wait()

    def keep_running(self, now_s: float) -> float:
        """Starts what is wanted and not running; returns how long nothing needs to be done."""
        pause_s = self.times.repeat_s
        for service in self.services.values():
            if service.running is None:
                if service.not_before_s <= now_s:
                    self._start(service, now_s)
                else:
                    pause_s = min(pause_s, service.not_before_s - now_s)
        if isinstance(self.place, Undecided) and now_s - self.waiting_since_s >= self.times.repeat_s:
            say(f"still waiting: {self.place.why}")
            self.waiting_since_s = now_s
        return pause_s

    def _start(self, service: Service, now_s: float) -> None:
        argv = [sys.executable, "-m", service.module]
        try:
            service.running = start(tied(argv), environment=service.environment, output=None)
        except OSError as error:
            self._died(service, f"cannot be started: {error.strerror or error}", now_s)
            return
        service.started_s = now_s

    def reap(self, now_s: float) -> None:
        """Collects every child that has ended: a service is planned anew, an orphan is only buried.

        Raises:
            CannotStart: when a service has ended because of its settings, which no other start would change. Not while
                training goes on below, which no service may end by its own end.
        """
        own = {
            service.running.pid: service for service in self.services.values() if service.running is not None
        }
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                return
            service = own.get(ended.si_pid)
            if service is None or service.running is None:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(ended.si_pid, 0)
                continue
            status = service.running.wait()
            service.running = None
            if status == _CANNOT_START and not self._trains():
                why = f"{service.name} cannot start with these settings; it says above what is wrong"
                raise CannotStart(why, _CANNOT_START)
            self._died(service, _how(status), now_s)

    def _died(self, service: Service, how: str, now_s: float) -> None:
        lived_s = now_s - service.started_s
        service.deaths = 1 if lived_s >= self.times.healthy_s else service.deaths + 1
        delay_s = restart_delay_s(service.deaths, self.times)
        service.not_before_s = now_s + delay_s
        say(f"{service.name} {how}; started again in {delay_s:.1f} s")

    def end_all(self, hurry: Callable[[], bool]) -> tuple[ProcessId, ...]:
        """Ends agent and training first, so that the coordinator hears their last words, then the rest.

        Returns:
            What not even SIGKILL could end.
        """
        serving = [s.running.pid for s in self.services.values() if s.running and s.name != "agent"]
        end(lambda: self._left(serving), grace_s=self.times.training_grace_s, hurry=hurry)
        left = end(lambda: self._left(()), grace_s=self.times.service_grace_s, hurry=hurry)
        self.services.clear()
        return left

    def end_own(self, hurry: Callable[[], bool]) -> tuple[ProcessId, ...]:
        """Ends what was started below this process, and no training that was there before it: for a start that fails.

        Returns:
            What not even SIGKILL could end.
        """
        for service in self.services.values():
            self._stop(service)
        left = end(lambda: _below(()), grace_s=self.times.training_grace_s, hurry=hurry)
        self.services.clear()
        return left

    def _left(self, spared: Sequence[int]) -> list[ProcessId]:
        """All below this process, and training that the agent of an earlier supervisor left running here."""
        below = _below(spared)
        return [*below, *(process for process in training_of(self.state) if process not in below)]

    def _trains(self) -> bool:
        return not set(_below(())).isdisjoint(training_of(self.state))


def _below(spared: Sequence[int]) -> list[ProcessId]:
    """All that runs below this process, but for the spared ones and what is below those."""
    kept = {process.id for pid in spared for process in descendants(pid)}
    return [p.id for p in descendants(os.getpid()) if p.id.pid not in spared and p.id not in kept]


def _shares_a_store(environment: Mapping[str, str]) -> bool:
    """Told from the scheme alone: the supervisor loads no database."""
    return environment.get("RANKCALL_DATABASE_URL", "").startswith(("postgresql", "postgres:"))


def training_of(state: Path) -> list[ProcessId]:
    """The processes of all attempts whose folder lies under this state folder."""
    jobs = f"{paths.Layout(state).jobs}{os.sep}"
    return [
        process
        for process, folder in environment_values("RANKCALL_ATTEMPT_DIR")
        if folder.startswith(jobs) and process.pid != os.getpid()
    ]


def _alone(popen: subprocess.Popen[bytes]) -> list[ProcessId]:
    process = identify(popen.pid) if popen.poll() is None else None
    return [] if process is None else [process]


def _how(status: int) -> str:
    if status >= 0:
        return f"ended with exit code {status}"
    with contextlib.suppress(ValueError):
        return f"was ended by {signal.Signals(-status).name}"
    return f"was ended by signal {-status}"
