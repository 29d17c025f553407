"""The handshake's gates: match and tcp. Called by `lifecycle.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from coordinator.attempt import AttemptState, Job, Observed, Seat
from coordinator.core.protocol import Address, Stage, TaskReport, TcpResult
from coordinator.match import Surroundings, match
from coordinator.preflight.address import judge as judge_addresses
from coordinator.preflight.address import judge_offers, settle, used
from coordinator.preflight.verdict import judge_tcp, name_of
from coordinator.stages.verdict import (
    PENDING,
    REPORT_SLACK_S,
    Verdict,
    blocking,
    carried,
    first_error,
    reports_of,
)


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
    seats = tuple(
        seat.model_copy(update={"clock_offset_s": m.clock_offset_s})
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
    job: Job, attempt: AttemptState, members: Sequence[Observed], elapsed_s: float
) -> Verdict:
    """Every link carried its payload there and back, and the master has a free rendezvous port.

    Of the addresses that each replica offers one is settled on, for the links to be judged on and for all that
    follows: the collective and the training use its interface.
    """
    reports = reports_of(attempt, members, Stage.TCP)
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
    if blocking(findings, job.allow) or port is None:
        reason = first_error(findings, job.allow)
        return Verdict("failed", reason, findings, updates={"seats": seats}, retryable=True)
    links = [link for result in results.values() for link in result.links]
    rtts = [link.rtt_s for link in links if link.rtt_s is not None]
    rates = [link.bytes_per_s for link in links if link.bytes_per_s is not None]
    summary = f"{len(links)} links echoed" + (f", slowest {_time(max(rtts))}" if rtts else "")
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
