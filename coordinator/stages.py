"""Has this stage passed, failed, or is it still under way? One pure function a stage. Called by `lifecycle.py`.

Each takes the job, the attempt and the replicas of its seats in rank order, and answers with a `Verdict`.
A stage never passes because something did not come: a silent replica is a failure at the deadline.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import JsonValue, TypeAdapter, ValidationError

from coordinator.attempt import AttemptState, Job, Observed
from coordinator.core.catalogue import finding
from coordinator.core.protocol import (
    CollectiveResult,
    CollectResult,
    Finding,
    Member,
    ProgressRecord,
    RunResult,
    Stage,
    TaskReport,
    TcpResult,
)
from coordinator.core.views import ComparedAnswer
from coordinator.match import match
from coordinator.preflight.address import judge as judge_addresses
from coordinator.preflight.collective_verdict import judge_collective
from coordinator.preflight.verdict import judge_tcp

# How long after a task's own deadline its report may take to arrive.
REPORT_SLACK_S = 5.0
# A replica this long silent while a handshake or a training runs is gone: an agent reports every 2 s and
# a restarted one is back within seconds, but a paused host or a coordinator's restart must not end a training.
GONE_IN_HANDSHAKE_S = 15.0
GONE_IN_TRAINING_S = 180.0

_COMPARISON = TypeAdapter(tuple[ComparedAnswer, ...])


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a stage. `updates` are fields of the attempt that it settled."""

    state: Literal["pending", "passed", "failed", "skipped"]
    summary: str = ""
    findings: tuple[Finding, ...] = ()
    figures: Mapping[str, JsonValue] = field(default_factory=dict)
    updates: Mapping[str, Any] = field(default_factory=dict)
    retryable: bool = False
    artifacts: CollectResult | None = None


PENDING = Verdict("pending")


def task_id(stage: Stage) -> str:
    """The id of a stage's task in its attempt."""
    return stage.value


def deadline_s(job: Job, stage: Stage) -> float | None:
    """How long a stage may take; None where only the watchdog judges."""
    deadlines = job.deadlines
    return {
        Stage.GATHER: deadlines.gather_s,
        Stage.MATCH: deadlines.match_s,
        Stage.TCP: deadlines.tcp_s,
        Stage.COLLECTIVE: deadlines.collective_s,
        Stage.PREPARE: deadlines.prepare_s,
        Stage.TRAIN: None,
        Stage.COLLECT: deadlines.collect_s,
        Stage.COMPARE: deadlines.compare_s,
    }[stage]


def blocking(findings: Sequence[Finding], allow: frozenset[str]) -> bool:
    """Whether an error is among them that the submission did not allow by its code."""
    return any(f.severity == "error" and f.code not in allow for f in findings)


def _reports(attempt: AttemptState, members: Sequence[Observed], stage: Stage) -> list[TaskReport | None]:
    return [member.task(attempt.id, task_id(stage)) for member in members]


def _seated(attempt: AttemptState) -> list[Member]:
    return [seat.member for seat in attempt.seats]


def _tcp_results(members: Sequence[Observed], reports: Sequence[TaskReport | None]) -> dict[str, TcpResult]:
    return {
        member.replica_id: report.result
        for member, report in zip(members, reports, strict=True)
        if report is not None and isinstance(report.result, TcpResult)
    }


def _collective_results(
    members: Sequence[Observed], reports: Sequence[TaskReport | None]
) -> dict[str, CollectiveResult]:
    return {
        member.replica_id: report.result
        for member, report in zip(members, reports, strict=True)
        if report is not None and isinstance(report.result, CollectiveResult)
    }


def _judged_so_far(attempt: AttemptState, members: Sequence[Observed], stage: Stage) -> tuple[Finding, ...]:
    """What the replicas that did report say about a handshake that ran out of time."""
    reports = _reports(attempt, members, stage)
    if stage is Stage.TCP:
        return judge_tcp(_seated(attempt), _tcp_results(members, reports))
    if stage is Stage.COLLECTIVE:
        return judge_collective(_seated(attempt), _collective_results(members, reports))
    return ()


def _names(members: Sequence[Observed], which: Sequence[bool]) -> str:
    return ", ".join(
        f"rank {r} ({m.name})" for r, (m, yes) in enumerate(zip(members, which, strict=True)) if yes
    )


def overdue(
    job: Job, attempt: AttemptState, members: Sequence[Observed], stage: Stage, elapsed_s: float
) -> Verdict | None:
    """A failure, when the stage's time is over or one of its replicas has been silent for too long."""
    gone_s = GONE_IN_TRAINING_S if stage in (Stage.TRAIN, Stage.PREPARE) else GONE_IN_HANDSHAKE_S
    gone = [member.silent_s > gone_s for member in members]
    if any(gone) and stage not in (Stage.COLLECT, Stage.COMPARE):
        member = members[gone.index(True)]
        lost = finding(
            "SYS003",
            f"{_names(members, gone)} has not been heard of for {member.silent_s:.0f} s during {stage.value}.",
            stage=stage,
            replica=member.replica_id,
        )
        return Verdict("failed", lost.message, (lost,), retryable=True)
    limit_s = deadline_s(job, stage)
    if limit_s is None or elapsed_s <= limit_s + REPORT_SLACK_S:
        return None
    if stage is Stage.MATCH:
        missing = [not (m.facts and m.facts.torch_ready) for m in members]
    else:
        missing = [
            report is None or report.state == "running" for report in _reports(attempt, members, stage)
        ]
    late = finding(
        "SYS004",
        f"{stage.value} was not finished after {limit_s:.0f} s; still waiting for {_names(members, missing) or 'nobody'}.",
        stage=stage,
        evidence={"deadline_s": limit_s},
    )
    return Verdict("failed", late.message, (*_judged_so_far(attempt, members, stage), late), retryable=True)


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
        *match(facts, gpus_per_node=_asked_gpus(job, members), names=names),
    )
    if blocking(findings, job.allow):
        return Verdict("failed", _first_error(findings, job.allow), findings)
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
    )


def _asked_gpus(job: Job, members: Sequence[Observed]) -> int | None:
    """GPUs a replica that the job is for; 0 for the CPU, None for all that each has."""
    if job.gpus_per_node is None and not any(m.registration.gpu_count for m in members):
        return 0
    return job.gpus_per_node


def judge_tcp_stage(job: Job, attempt: AttemptState, members: Sequence[Observed]) -> Verdict:
    """Every link carried its payload there and back, and the master has a free rendezvous port."""
    reports = _reports(attempt, members, Stage.TCP)
    if any(report is None or report.state == "running" for report in reports):
        return PENDING
    results = _tcp_results(members, reports)
    findings = (*judge_tcp(_seated(attempt), results), *_carried(reports))
    master = results.get(members[0].replica_id)
    port = master.rendezvous_port if master else None
    if blocking(findings, job.allow) or port is None:
        return Verdict("failed", _first_error(findings, job.allow), findings, retryable=True)
    links = [link for result in results.values() for link in result.links]
    rtts = [link.rtt_s for link in links if link.rtt_s is not None]
    rates = [link.bytes_per_s for link in links if link.bytes_per_s is not None]
    summary = f"{len(links)} links echoed" + (f", slowest {max(rtts) * 1000:.1f} ms" if rtts else "")
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
        updates={"rendezvous_port": port},
    )


def judge_collective_stage(job: Job, attempt: AttemptState, members: Sequence[Observed]) -> Verdict:
    """torch.distributed came up among all and every rank saw the right sum."""
    reports = _reports(attempt, members, Stage.COLLECTIVE)
    if any(report is None or report.state == "running" for report in reports):
        return PENDING
    results = _collective_results(members, reports)
    findings = (*judge_collective(_seated(attempt), results), *_carried(reports))
    sound = len(results) == len(members) and all(r.ok and r.values_ok for r in results.values())
    if not sound and not any(f.severity == "error" for f in findings):
        findings += (finding("COL001", "The collective check brought no result on some rank."),)
    if blocking(findings, job.allow):
        return Verdict("failed", _first_error(findings, job.allow), findings, retryable=True)
    inits = [r.init_s for r in results.values() if r.init_s is not None]
    firsts = [r.first_all_reduce_s for r in results.values() if r.first_all_reduce_s is not None]
    rates = [max(r.bytes_per_s.values()) for r in results.values() if r.bytes_per_s]
    backend = next(iter(results.values())).backend
    rate = f", {min(rates) / 1e6:.0f} MB/s" if rates else ""
    return Verdict(
        "passed",
        f"{backend} up in {max(inits, default=0):.1f} s, sums right on {attempt.world_size} of {attempt.world_size} ranks{rate}",
        findings,
        figures={
            "backend": backend,
            "init_s": max(inits, default=None),
            "first_all_reduce_s": max(firsts, default=None),
            "bytes_per_s_min": min(rates, default=None),
        },
    )


def judge_prepare(attempt: AttemptState, members: Sequence[Observed]) -> Verdict:
    """Every replica has the same prepared data."""
    reports = _reports(attempt, members, Stage.PREPARE)
    failed = _failed_runs(members, reports, Stage.PREPARE)
    if failed:
        return Verdict("failed", failed[0].message, failed)
    if any(report is None or report.state == "running" for report in reports):
        return PENDING
    outputs = [_output(report) for report in reports]
    digests = {str(output.get("digest")) for output in outputs}
    samples = [output.get("rows") for output in outputs]
    if len(digests) > 1:
        rows = ", ".join(f"rank {r}: {n} samples" for r, n in enumerate(samples))
        differ = finding(
            "RUN002",
            f"The replicas prepared different data ({rows}); they would take different numbers of steps and hang.",
            stage=Stage.PREPARE,
            evidence={"prepared": {m.replica_id: o for m, o in zip(members, outputs, strict=True)}},
        )
        return Verdict("failed", differ.message, (differ,))
    count = samples[0] if samples else None
    same = f"{count} samples, the same on every rank" if count is not None else "prepared on every rank"
    return Verdict("passed", same, _carried(reports), figures={"samples": count})


def judge_train(
    attempt: AttemptState, members: Sequence[Observed], starts: Sequence[ProgressRecord]
) -> Verdict:
    """All ranks trained together to the end: one world, the same steps, exit 0 everywhere."""
    reports = _reports(attempt, members, Stage.TRAIN)
    failed = _failed_runs(members, reports, Stage.TRAIN)
    apart = _training_apart(attempt, starts)
    if failed or apart:
        findings = (*apart, *failed)
        return Verdict("failed", findings[0].message, findings, retryable=not apart)
    if any(report is None or report.state == "running" for report in reports):
        return PENDING
    silent = sorted(set(range(attempt.world_size)) - {start.rank for start in starts})
    if silent:
        unseen = finding(
            "RUN004",
            f"Training ended with exit code 0, but rank {', '.join(map(str, silent))} never said that it trained.",
            evidence={"heard_of": [*sorted(start.rank for start in starts)]},
        )
        return Verdict("failed", unseen.message, (unseen,))
    steps = starts[0].total_steps
    return Verdict(
        "passed",
        f"{steps} steps on {attempt.world_size} ranks",
        _carried(reports),
        figures={"total_steps": steps, "world_size": attempt.world_size},
    )


def judge_collect(attempt: AttemptState, members: Sequence[Observed]) -> Verdict:
    """Rank 0 has a whole model, hashed, ready to be downloaded."""
    report = members[0].task(attempt.id, task_id(Stage.COLLECT))
    if report is None or report.state == "running":
        return PENDING
    carried = _carried([report])
    result = report.result if isinstance(report.result, CollectResult) else None
    if report.state == "failed" or result is None:
        findings = carried or (finding("RUN005", "The result could not be collected.", stage=Stage.COLLECT),)
        return Verdict("failed", findings[0].message, findings)
    weights = [
        a for a in result.artifacts if a.kind in ("model", "adapter") and a.path.endswith(".safetensors")
    ]
    if result.empty_tensors:
        names = ", ".join(result.empty_tensors[:3])
        empty = finding(
            "RUN006",
            f"{len(result.empty_tensors)} of {result.tensors} saved tensors are empty ({names} …): the model is lost.",
            stage=Stage.COLLECT,
            evidence={"empty_tensors": list(result.empty_tensors[:50])},
        )
        return Verdict("failed", empty.message, (*carried, empty))
    if not any(a.kind in ("model", "adapter") for a in result.artifacts):
        none = finding("RUN005", f"No model was found in {result.folder}.", stage=Stage.COLLECT)
        return Verdict("failed", none.message, (*carried, none))
    total = sum(a.size_bytes for a in result.artifacts)
    return Verdict(
        "passed",
        f"{len(result.artifacts)} files, {total / 1e6:.1f} MB, {result.tensors} tensors whole, in {result.folder}",
        carried,
        figures={"bytes": total, "tensors": result.tensors, "weight_files": len(weights)},
        updates={"result_folder": result.folder},
        artifacts=result,
    )


def judge_compare(job: Job, attempt: AttemptState, members: Sequence[Observed]) -> Verdict:
    """Base and tuned model answered the prompts. Its failure is a warning: the model is there already."""
    if not job.has_prompts:
        return Verdict("skipped", "no prompts were given")
    report = members[0].task(attempt.id, task_id(Stage.COMPARE))
    if report is None or report.state == "running":
        return PENDING
    try:
        answers = _COMPARISON.validate_python(_raw_output(report))
    except ValidationError:
        answers = ()
    if report.state == "failed" or not answers:
        missed = finding(
            "RUN007",
            "The base and the tuned model could not be compared; the trained model itself is safe.",
            stage=Stage.COMPARE,
            replica=members[0].replica_id,
            evidence={"tail": _tail(report)},
        )
        return Verdict("skipped", missed.message, (*_carried([report]), missed))
    return Verdict(
        "passed",
        f"{len(answers)} prompts answered by both",
        _carried([report]),
        updates={"comparison": answers},
    )


def _first_error(findings: Sequence[Finding], allow: frozenset[str]) -> str:
    errors = [f for f in findings if f.severity == "error" and f.code not in allow]
    return errors[0].message if errors else "the stage failed without a finding"


def _carried(reports: Sequence[TaskReport | None]) -> tuple[Finding, ...]:
    return tuple(f for report in reports if report is not None for f in report.findings)


def _raw_output(report: TaskReport | None) -> JsonValue:
    return report.result.output if report is not None and isinstance(report.result, RunResult) else None


def _output(report: TaskReport | None) -> dict[str, JsonValue]:
    output = _raw_output(report)
    return output if isinstance(output, dict) else {}


def _tail(report: TaskReport | None) -> list[JsonValue]:
    return list(report.result.tail) if report is not None and isinstance(report.result, RunResult) else []


def _failed_runs(
    members: Sequence[Observed], reports: Sequence[TaskReport | None], stage: Stage
) -> tuple[Finding, ...]:
    """A finding for each rank whose process failed; what the agent found itself comes first."""
    found: list[Finding] = []
    for rank, (member, report) in enumerate(zip(members, reports, strict=True)):
        if report is None or report.state != "failed":
            continue
        own = tuple(f.model_copy(update={"replica": f.replica or member.replica_id}) for f in report.findings)
        found.extend(own)
        result = report.result if isinstance(report.result, RunResult) else RunResult()
        if any(f.severity == "error" for f in own):
            continue
        how = f"signal {result.signal}" if result.signal else f"exit code {result.exit_code}"
        found.append(
            finding(
                "RUN001",
                f"{stage.value} failed on rank {rank} ({member.name}) with {how}.",
                stage=stage,
                replica=member.replica_id,
                evidence={"exit_code": result.exit_code, "signal": result.signal, "tail": list(result.tail)},
            )
        )
    return tuple(found)


def _training_apart(attempt: AttemptState, starts: Sequence[ProgressRecord]) -> tuple[Finding, ...]:
    """Machines that train alone, or disagree on how long, are a failure even where every one exits 0."""
    found: list[Finding] = []
    alone = [s for s in starts if s.world_size is not None and s.world_size != attempt.world_size]
    if alone:
        worlds = {str(s.rank): s.world_size for s in alone}
        found.append(
            finding(
                "RUN003",
                f"The training's world has {alone[0].world_size} ranks where it must have {attempt.world_size}: "
                "a machine trains alone.",
                evidence={"world_sizes": dict(worlds)},
            )
        )
    for what in ("total_steps", "batches"):
        said = {s.rank: getattr(s, what) for s in starts if getattr(s, what) is not None}
        if len(set(said.values())) > 1:
            each = ", ".join(f"rank {rank}: {value}" for rank, value in sorted(said.items()))
            found.append(
                finding(
                    "RUN002",
                    f"The ranks disagree on {what.replace('_', ' ')} ({each}); the run would hang at the shorter one's end.",
                    stage=Stage.TRAIN,
                    evidence={what: {str(rank): value for rank, value in said.items()}},
                )
            )
    return tuple(found)
