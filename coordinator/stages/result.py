"""The gates of the result: a whole model on rank 0, and what base and tuned model answer."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import JsonValue, TypeAdapter, ValidationError

from coordinator.attempt import AttemptState, Job, Observed
from coordinator.core.catalogue import finding
from coordinator.core.protocol import CollectResult, RunResult, Stage, TaskReport
from coordinator.core.views import ComparedAnswer
from coordinator.core.words import counted
from coordinator.stages.verdict import PENDING, Verdict, carried, task_id

_COMPARISON = TypeAdapter(tuple[ComparedAnswer, ...])


def judge_collect(attempt: AttemptState, members: Sequence[Observed]) -> Verdict:
    """Rank 0 has a whole model, hashed, ready to be downloaded."""
    report = members[0].task(attempt.id, task_id(Stage.COLLECT))
    if report is None or report.state == "running":
        return PENDING
    own = carried([report])
    result = report.result if isinstance(report.result, CollectResult) else None
    if report.state == "failed" or result is None:
        findings = own or (finding("RUN005", "The result could not be collected.", stage=Stage.COLLECT),)
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
        return Verdict("failed", empty.message, (*own, empty))
    if not any(a.kind in ("model", "adapter") for a in result.artifacts):
        none = finding("RUN005", f"No model was found in {result.folder}.", stage=Stage.COLLECT)
        return Verdict("failed", none.message, (*own, none))
    total = sum(a.size_bytes for a in result.artifacts)
    return Verdict(
        "passed",
        f"{counted(len(result.artifacts), 'file')}, {total / 1e6:.1f} MB, {counted(result.tensors, 'tensor')} whole",
        own,
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
        return Verdict("skipped", missed.message, (*carried([report]), missed))
    return Verdict(
        "passed",
        f"{counted(len(answers), 'prompt')} answered by both",
        carried([report]),
        updates={"comparison": answers},
    )


def _raw_output(report: TaskReport | None) -> JsonValue:
    return report.result.output if report is not None and isinstance(report.result, RunResult) else None


def _tail(report: TaskReport | None) -> list[JsonValue]:
    return list(report.result.tail) if report is not None and isinstance(report.result, RunResult) else []
