"""What the handshake after a hung training says about the fault: transient, reproducible, or unknown. Pure.

The next attempt begins with tcp and collective anyway, among the same replicas; after a hang the collective has to pass
three times, which costs well under a second each. What fails there again is named by its stage and link, and ends the
job: more attempts would fail alike. A job that may not try again gets an attempt of these stages alone. Called by
`lifecycle.py`, `gather.py` and `progress.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import JsonValue

from coordinator.attempt import AttemptState, Doubt, Job, Observed, Proof
from coordinator.core.catalogue import finding
from coordinator.core.protocol import Finding, Stage
from coordinator.retry import may_follow
from coordinator.stages.verdict import GONE_IN_HANDSHAKE_S, Verdict

# A link that loses one connection in two passes once by chance; three times it seldom does.
PASSES = 3

# Findings that convict a link or a replica of failing with its peers. The others say that something did not answer, or
# could not be tested: that proves nothing.
_CONVICTING = frozenset(
    {f"NET0{number:02}" for number in (*range(1, 8), 10, 11, 12, 13, 14)}
    | {"COL002", "COL004", "COL005", "COL006", "COL020", "COL021", "COL022"}
)


def doubt_of(last: AttemptState | None) -> Doubt | None:
    """What the attempt after `last` has to explain: a training that hung or failed by the network, and was not explained."""
    if last is None or last.outcome != "failed" or last.proof == "reproducible":
        return None
    if last.doubt is not None and last.proof is None:  # its handshake did not come so far
        return last.doubt
    if last.stage.stage is not Stage.TRAIN or (last.hung is None and last.fault != "network"):
        return None
    return Doubt(
        number=last.number,
        reason=last.reason,
        replicas=tuple(seat.replica_id for seat in last.seats),
        hung=last.hung,
    )


def checks_only(job: Job, last: AttemptState) -> bool:
    """After `last` only the links are to be tested: there is a doubt, and no further training may be tried."""
    if job.kind != "train" or doubt_of(last) is None or not last.trains:
        return False
    return not (last.retryable and may_follow(last.fault, job.attempts, job.attempts_allowed))


def settle(
    attempt: AttemptState, members: Sequence[Observed], stage: Stage, verdict: Verdict
) -> tuple[Proof, Finding] | None:
    """What the end of this stage says about the doubt; None while it says nothing yet.

    Args:
        attempt: with all rounds of its collective.
    """
    doubt = attempt.doubt
    if doubt is None or attempt.proof is not None or stage not in (Stage.TCP, Stage.COLLECTIVE):
        return None
    if verdict.state == "failed":
        silent = [member.name for member in members if member.silent_s > GONE_IN_HANDSHAKE_S]
        if silent:  # its silence counts as a failure there, and says nothing about a link
            why = f"{', '.join(silent)} is not heard of"
            return "unknown", _unknown(doubt, why, _evidence(doubt, stage))
        return _failed_again(doubt, stage, verdict)
    if stage is not Stage.COLLECTIVE or verdict.state != "passed":
        return None
    evidence = _evidence(doubt, stage)
    absent = set(doubt.replicas) - {seat.replica_id for seat in attempt.seats}
    if absent:
        why = f"{len(absent)} of the replicas it happened among {'is' if len(absent) == 1 else 'are'} not here any more"
        return "unknown", _unknown(doubt, why, evidence)
    if not all(all(one.passed or ()) for one in attempt.rounds):
        return "unknown", _unknown(doubt, "the collective failed once more, and then passed", evidence)
    passes = sum(1 for one in attempt.rounds if one.proving)
    return "transient", finding(
        "RUN033",
        f"{_what(doubt)}: among the same replicas every link passes now, and the collective {passes} times. Whatever "
        "held it up between them was transient.",
        stage=stage,
        evidence={**evidence, "verdict": "transient", "passes": passes},
    )


def hung_alike(attempt: AttemptState) -> Finding | None:
    """The training hangs as it did before, though links and collective passed in between: then they are not the cause."""
    doubt = attempt.doubt
    if doubt is None or attempt.proof != "transient" or doubt.hung is None or attempt.hung is None:
        return None
    before, now = _place(doubt.hung), _place(attempt.hung)
    if before is None or before != now:
        return None
    rank, phase, step = now
    where = f" at step {step}" if step is not None else ""
    return finding(
        "RUN034",
        f"Attempts {doubt.number} and {attempt.number} hung alike, with rank {rank} behind in {phase}{where}, although links "
        "and collective passed in between: the fault is in the training itself, on that rank.",
        stage=Stage.TRAIN,
        replica=attempt.hung.replica,
        evidence={"verdict": "reproducible", "after_attempt": doubt.number, "rank": rank, "phase": phase},
    )


def unproven(last: AttemptState, why: str) -> Finding:
    """The doubt about `last` stays."""
    doubt = doubt_of(last)
    assert doubt is not None
    return _unknown(doubt, why, _evidence(doubt, Stage.GATHER))


def _failed_again(doubt: Doubt, stage: Stage, verdict: Verdict) -> tuple[Proof, Finding]:
    evidence = _evidence(doubt, stage)
    errors = [one for one in verdict.findings if one.severity == "error"]
    convicting = [one for one in errors if one.code in _CONVICTING]
    if not convicting:
        why = errors[0].message if errors else verdict.summary
        return "unknown", _unknown(doubt, f"{stage.value} could not be judged ({why.rstrip('.')})", evidence)
    first = convicting[0]
    return "reproducible", finding(
        "RUN034",
        f"{_what(doubt)}, and {stage.value} fails again without it: {first.message}",
        hint=first.hint or None,
        stage=stage,
        replica=first.replica,
        evidence={
            **evidence,
            "verdict": "reproducible",
            "codes": [one.code for one in convicting],
        },
    )


def _unknown(doubt: Doubt, why: str, evidence: dict[str, JsonValue]) -> Finding:
    return finding(
        "RUN035",
        f"{_what(doubt)}; whether that was transient is unknown: {why}.",
        stage=Stage.COLLECTIVE,
        evidence={**evidence, "verdict": "unknown"},
    )


def _evidence(doubt: Doubt, stage: Stage) -> dict[str, JsonValue]:
    return {"after_attempt": doubt.number, "stage": stage.value, "replicas": list(doubt.replicas)}


def _what(doubt: Doubt) -> str:
    return f"Attempt {doubt.number} {'hung' if doubt.hung else 'lost the connection between its ranks'}"


def _place(hung: Finding) -> tuple[int, str, int | None] | None:
    """Who was behind, in what, at which step; None where nobody can be told from the others."""
    behind, ranks = hung.evidence.get("behind"), hung.evidence.get("ranks")
    if not isinstance(behind, list) or len(behind) != 1 or not isinstance(ranks, dict):
        return None
    rank = behind[0]
    seen = ranks.get(str(rank))
    if not isinstance(rank, int) or not isinstance(seen, dict):
        return None
    step = seen.get("step")
    return rank, str(seen.get("phase")), step if isinstance(step, int) else None
