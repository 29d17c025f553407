"""The handshake's gates: match and tcp. Called by `lifecycle.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from coordinator.attempt import AttemptState, Job, Observed, Seat
from coordinator.core.protocol import Address, Stage, TaskReport, TcpResult
from coordinator.core.words import counted
from coordinator.match import Surroundings, match
from coordinator.match.fabric import infiniband
from coordinator.preflight.address import judge as judge_addresses
from coordinator.preflight.address import judge_offers, settle, used
from coordinator.preflight.verdict import judge_tcp, name_of
from coordinator.stages.verdict import (
    GONE_IN_HANDSHAKE_S,
    PENDING,
    REPORT_SLACK_S,
    Verdict,
    blocking,
    carried,
    first_error,
    task_id,
)

# What a link says when nobody listens at its other end.
_NOBODY_THERE = frozenset({"refused", "closed"})
# A replica whose agent is started anew again and again is no accident.
PROBED_ANEW = 3


def judge_match(job: Job, attempt: AttemptState, members: Sequence[Observed]) -> Verdict:
    """All facts are here and fit together."""
    facts = {
        m.replica_id: m.facts
        for m in members
        if m.facts is not None and (m.facts.torch_ready or m.facts.torch_asked)
    }
    if len(facts) < len(members):
        return PENDING
    names = {m.replica_id: f"rank {rank} ({m.name})" for rank, m in enumerate(members)}
    findings = (
        *judge_addresses({m.replica_id: m.registration for m in members}),
        *match(
            facts,
            gpus_per_node=_asked_gpus(job, members),
            names=names,
            surroundings={
                m.replica_id: Surroundings(
                    tuple(other.address for other in attempt.seats if other.replica_id != m.replica_id),
                    m.clock_offset_s,
                )
                for m in members
            },
        ),
    )
    ports = infiniband(facts) if attempt.gpus_per_node else {}
    seats = tuple(
        seat.model_copy(
            update={"clock_offset_s": m.clock_offset_s, "infiniband": ports.get(m.replica_id, ())}
        )
        for seat, m in zip(attempt.seats, members, strict=True)
    )
    if blocking(findings, job.allow):
        return Verdict("failed", first_error(findings, job.allow), findings, updates={"seats": seats})
    first = facts[members[0].replica_id]
    gpus = (
        f"{attempt.gpus_per_node} × {first.gpus[0].name}" if first.gpus and attempt.gpus_per_node else "CPU"
    )
    versions = {name: first.packages.get(name) for name in ("torch", "accelerate", "deepspeed", "axolotl")}
    return Verdict(
        "passed",
        f"{len(members)} alike: {gpus}, torch {versions['torch'] or 'missing'}",
        findings,
        figures={**versions, "nccl": first.nccl},
        updates={"seats": seats},
    )


def _asked_gpus(job: Job, members: Sequence[Observed]) -> int | None:
    """GPUs a replica that the job is for; 0 for the CPU, None for all that each has."""
    if job.gpus_per_node is None and not any(m.registration.gpu_count for m in members):
        return 0
    return job.gpus_per_node


def judge_tcp_stage(
    job: Job, attempt: AttemptState, members: Sequence[Observed], at: float, elapsed_s: float
) -> Verdict:
    """Every link carried its payload there and back, and the master has a free rendezvous port.

    A link that failed says nothing when an agent at its end was restarted meanwhile: all are probed again.

    Of the addresses that each replica offers one is settled on, for the links to be judged on and for all that
    follows: the collective and the training use its interface.
    """
    task = tcp_task_id(attempt)
    reports = [member.task(attempt.id, task) for member in members]
    waiting = any(report is None or report.state == "running" for report in reports)
    if waiting and elapsed_s <= job.deadlines.tcp_s + REPORT_SLACK_S:
        return PENDING
    tried = _tcp_results(members, reports)
    offered = {seat.replica_id: _offers(seat) for seat in attempt.seats}
    chosen = settle(offered, tried)
    results = used(chosen, tried)
    seats = tuple(_settled(seat, chosen.get(seat.replica_id)) for seat in attempt.seats)
    seated = [seat.member for seat in seats]
    names = {member.replica_id: name_of(member) for member in seated}
    findings = (
        *judge_tcp(seated, results),
        *judge_offers(offered, chosen, tried, names),
        *carried(reports),
    )
    master = results.get(members[0].replica_id)
    port = master.rendezvous_port if master else None
    broken = blocking(findings, job.allow) or port is None
    restarted = restarted_since(attempt.seats, members)
    if restarted and attempt.probed < PROBED_ANEW and broken:
        again = {
            "seats": as_of_now(attempt.seats, members),
            "probed": attempt.probed + 1,
            "probed_since": at,
            "refused_since": None,
        }
        return Verdict("pending", updates=again)
    if broken and (doubt := _in_doubt(attempt, members, results, at)) is not None:
        return doubt
    if broken or port is None:
        reason = first_error(findings, job.allow)
        return Verdict("failed", reason, findings, updates={"seats": seats}, retryable=True)
    links = [link for result in results.values() for link in result.links]
    rtts = [link.rtt_s for link in links if link.rtt_s is not None]
    rates = [link.bytes_per_s for link in links if link.bytes_per_s is not None]
    summary = f"{counted(len(links), 'link')} echoed" + (f", slowest {_time(max(rtts))}" if rtts else "")
    return Verdict(
        "passed",
        f"{summary}, rendezvous on port {port}",
        findings,
        figures={
            "links": len(links),
            "rtt_max_s": max(rtts, default=None),
            "bytes_per_s_min": min(rates, default=None),
            "rendezvous_port": port,
        },
        updates={"seats": seats, "rendezvous_port": port, "free_ports": _free_ports(members, results)},
    )


def _in_doubt(
    attempt: AttemptState, members: Sequence[Observed], results: Mapping[str, TcpResult], at: float
) -> Verdict | None:
    """Where an agent did not take a connection, whether it still lives: one that does speaks every two seconds.

    One that was killed is soon back, and then its links are probed again, or it is silent, and then that is the finding.
    """
    refused = {
        link.replica_id
        for result in results.values()
        for link in result.links
        if not link.ok and link.fault in _NOBODY_THERE
    }
    if not refused:
        return None
    if attempt.refused_since is None:
        return Verdict("pending", updates={"refused_since": at})
    since_s = at - attempt.refused_since
    unheard = any(m.replica_id in refused and m.silent_s >= since_s for m in members)
    return PENDING if unheard and since_s <= GONE_IN_HANDSHAKE_S + 1.0 else None


def tcp_task_id(attempt: AttemptState) -> str:
    """The id of the probes of its links, as they were ordered last."""
    return f"{task_id(Stage.TCP)}-{attempt.probed}" if attempt.probed else task_id(Stage.TCP)


def restarted_since(seats: Sequence[Seat], members: Sequence[Observed]) -> bool:
    """Whether an agent was started anew since these seats were as of now; its part has to be done again."""
    return any(seat.incarnation not in (0, m.incarnation) for seat, m in zip(seats, members, strict=True))


def as_of_now(seats: Sequence[Seat], members: Sequence[Observed]) -> tuple[Seat, ...]:
    """The seats with what changes when an agent is started anew: it listens on another port."""
    return tuple(
        seat.model_copy(
            update={"incarnation": m.incarnation, "echo_port": m.registration.echo_port or seat.echo_port}
        )
        for seat, m in zip(seats, members, strict=True)
    )


def _offers(seat: Seat) -> tuple[Address, ...]:
    return seat.offers or (Address(address=seat.address, interface=seat.interface or "", family=seat.family),)


def _settled(seat: Seat, chosen: Address | None) -> Seat:
    if chosen is None:
        return seat
    return seat.model_copy(
        update={
            "address": chosen.address,
            "interface": chosen.interface or None,
            "family": chosen.family,
        }
    )


def _tcp_results(members: Sequence[Observed], reports: Sequence[TaskReport | None]) -> dict[str, TcpResult]:
    return {
        member.replica_id: report.result
        for member, report in zip(members, reports, strict=True)
        if report is not None and isinstance(report.result, TcpResult)
    }


def _time(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms" if seconds >= 0.001 else f"{seconds * 1e6:.0f} µs"


def _free_ports(members: Sequence[Observed], results: Mapping[str, TcpResult]) -> tuple[int | None, ...]:
    """By rank: a port nobody listens on there, for the groups of an isolation."""
    found = [results.get(member.replica_id) for member in members]
    return tuple(result.rendezvous_port if result else None for result in found)
