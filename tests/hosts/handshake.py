"""The coordinator's part of a handshake, played by a test: tasks out to probers on hosts, results in, judged."""

from __future__ import annotations

import concurrent.futures
import contextlib
import itertools
import secrets
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from namespaces import Host

from coordinator.assignment import RENDEZVOUS_PORTS
from coordinator.core.protocol import (
    Address,
    CollectiveResult,
    CollectiveTask,
    Finding,
    Member,
    Stage,
    TcpResult,
    TcpTask,
)
from coordinator.preflight import plan
from coordinator.preflight.isolate import NextRound, Verdict, advance
from coordinator.preflight.isolate_verdict import outcome, tell
from coordinator.preflight.verdict import judge_collective, judge_tcp

PROBER = Path(__file__).with_name("prober.py")
PORT = RENDEZVOUS_PORTS[0]


@dataclass
class Prober:
    """One replica's prober process on its host."""

    host: Host
    member: Member
    process: subprocess.Popen[bytes]
    owed: int = 0  # answers that have not come yet: one that was stopped gives them when it goes on

    def ask(self, task: TcpTask | CollectiveTask, wait_s: float) -> bytes | None:
        """The answer to a task as JSON; None when none came in `wait_s`. Late answers to others are skipped."""
        assert self.process.stdin is not None
        self.process.stdin.write(task.model_dump_json().encode() + b"\n")
        self.process.stdin.flush()
        self.owed += 1
        for name, answer in self._answers(wait_s):
            if name == task.task_id.encode():
                return answer
        return None

    def settle(self, wait_s: float) -> None:
        """Take the answers that are still owed, so that nothing of it goes on afterwards."""
        for _ in self._answers(wait_s):
            pass
        assert not self.owed, f"{self.owed} tasks of {self.member.name} are still not answered"

    def _answers(self, wait_s: float) -> Iterator[tuple[bytes, bytes]]:
        assert self.process.stdout is not None
        until = time.monotonic() + wait_s
        while (
            self.owed and select.select([self.process.stdout], [], [], max(0.0, until - time.monotonic()))[0]
        ):
            name, _, answer = self.process.stdout.readline().partition(b" ")
            if not name:
                return
            self.owed -= 1
            yield name, answer


class Handshake:
    """Probers on hosts, in rank order."""

    def __init__(self, probers: Sequence[Prober]) -> None:
        self.probers = list(probers)
        self.members = tuple(prober.member for prober in probers)
        self.took_s = 0.0
        self._numbers = itertools.count(1)

    def tcp(
        self, deadline_s: float = 12.0, offers: Mapping[str, Sequence[Address]] | None = None
    ) -> dict[str, TcpResult]:
        """The mesh; with `offers` peers try every address of each replica."""
        nonce, sampled = secrets.token_hex(8), plan.sampled(self.members)
        targets = plan.tcp_targets(plan.with_offers(self.members, offers or {}))

        def task(member: Member) -> TcpTask:
            return TcpTask(
                task_id=f"tcp-{next(self._numbers)}",
                stage=Stage.TCP,
                deadline_s=deadline_s,
                nonce=nonce,
                targets=targets[member.replica_id],
                sampled=sampled[member.replica_id],
                port_candidates=RENDEZVOUS_PORTS if member.rank == 0 else (),
            )

        answers = self._ask_all([task(member) for member in self.members], deadline_s)
        return {replica: TcpResult.model_validate_json(answer) for replica, answer in answers.items()}

    def judged_tcp(self, deadline_s: float = 12.0) -> tuple[Finding, ...]:
        return judge_tcp(self.members, self.tcp(deadline_s))

    def warm(self) -> None:
        """Have every prober import torch."""
        alone = [
            self._round(
                member,
                (member,),
                120.0,
                task_id=f"import-{next(self._numbers)}",
                master_address="127.0.0.1",
                interface="lo",
            )
            for member in self.members
        ]
        answers = self._ask_all(alone, 120.0)
        assert all(CollectiveResult.model_validate_json(answer).ok for answer in answers.values()), answers

    def collective(self, deadline_s: float = 20.0) -> dict[str, CollectiveResult]:
        task_id = self._next_round()
        tasks = [self._round(member, self.members, deadline_s, task_id=task_id) for member in self.members]
        answers = self._ask_all(tasks, deadline_s)
        return {replica: CollectiveResult.model_validate_json(answer) for replica, answer in answers.items()}

    def judged_collective(self, deadline_s: float = 20.0) -> tuple[Finding, ...]:
        return judge_collective(self.members, self.collective(deadline_s))

    def isolate(
        self, deadline_s: float, among_all: Mapping[str, CollectiveResult] | None = None
    ) -> tuple[Verdict, tuple[Finding, ...]]:
        """The check among all (or what it gave before), then rounds of groups until there is a verdict."""
        replicas = tuple(member.replica_id for member in self.members)
        history = [(outcome(replicas, among_all or self.collective(deadline_s)),)]
        while isinstance(step := advance(replicas, history), NextRound):
            tasks = self._groups(step.groups, deadline_s)
            answers = self._ask_all([tasks.get(member.replica_id) for member in self.members], deadline_s)
            results = {
                replica: CollectiveResult.model_validate_json(answer) for replica, answer in answers.items()
            }
            history.append(tuple(outcome(group, results) for group in step.groups))
        return step, tell(step, self.members, history)

    def _groups(self, groups: Sequence[Sequence[str]], deadline_s: float) -> dict[str, CollectiveTask]:
        """A round of groups: each a world of its own, its first member the master."""
        by_id = {member.replica_id: member for member in self.members}
        task_id = self._next_round()
        return {
            replica: self._round(
                by_id[replica], [by_id[other] for other in group], deadline_s, task_id=task_id
            )
            for group in groups
            for replica in group
        }

    def _next_round(self) -> str:
        """The name of a round, which all its members have in common."""
        return f"collective-{next(self._numbers)}"

    def _round(
        self, member: Member, group: Sequence[Member], deadline_s: float, **changed: object
    ) -> CollectiveTask:
        return CollectiveTask.model_validate(
            {
                "stage": Stage.COLLECTIVE,
                "deadline_s": deadline_s,
                "rank": group.index(member),
                "world_size": len(group),
                "master_address": group[0].address,
                "master_port": PORT,
                "backend": "gloo",
                "interface": member.interface,
                "sizes_bytes": (4, 1 << 20),
                **changed,
            }
        )

    def _ask_all(
        self, tasks: Sequence[TcpTask | CollectiveTask | None], deadline_s: float
    ) -> dict[str, bytes]:
        began = time.monotonic()
        with concurrent.futures.ThreadPoolExecutor(len(tasks)) as pool:
            asked = [
                pool.submit(prober.ask, task, deadline_s + 2) if task else None
                for prober, task in zip(self.probers, tasks, strict=True)
            ]
            answers = [one.result() if one else None for one in asked]
        self.took_s = time.monotonic() - began
        return {
            member.replica_id: answer for member, answer in zip(self.members, answers, strict=True) if answer
        }


@contextlib.contextmanager
def probers(hosts: Sequence[Host], *, family: str = "ipv4") -> Iterator[Handshake]:
    """A prober on each host, rank by rank, with its echo server up."""
    started = [
        host.popen(
            [sys.executable, str(PROBER), f"r-{rank:010d}"], stdout=subprocess.PIPE, stdin=subprocess.PIPE
        )
        for rank, host in enumerate(hosts)
    ]
    made = []
    for rank, (host, process) in enumerate(zip(hosts, started, strict=True)):
        assert process.stdout is not None
        port = int(process.stdout.readline())
        member = Member(
            replica_id=f"r-{rank:010d}",
            rank=rank,
            address=host.address if family == "ipv4" else host.address6,
            interface=host.interface,
            echo_port=port,
            name=host.name,
        )
        made.append(Prober(host, member, process))
    yield Handshake(made)
