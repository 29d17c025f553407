"""A job's report: one Markdown document that anyone can keep, paste or print, and read without rankcall.

Pure: (what is known) → text. The order is the reader's: what came of it, the figures, the answers, what was found, how
it went, on what, with which files. Whatever came from outside is shown as text: in a line its marks are escaped, in a block
the fence is longer than any within.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime

from coordinator.core.protocol import Facts, Finding
from coordinator.core.views import (
    TERMINAL_STATES,
    AttemptView,
    CurvePoint,
    EvidenceView,
    JobView,
    ProgressView,
    RenderedView,
    ReportView,
    StageView,
)
from coordinator.core.words import between, counted, duration, plain, size

# An underscore within a word is none; what is a mark only where a line begins is `_line`'s.
_MARKS = re.compile(r"([\\`*\[\]<>|~&$]|(?<![^\W_])_|_(?![^\W_]))")
_BEGINNINGS = re.compile(r"^([#+=-]|\d+(?=[.)]))")
_FENCES = re.compile(r"`{3,}")
_LANGUAGES = {"yaml": "yaml", "yml": "yaml", "json": "json"}


def markdown(told: ReportView) -> str:
    """The whole document."""
    sections = (
        _head(told),
        _result(told.job),
        _training(told.job.progress, told.curve),
        _answers(told.job),
        _findings(told.job.findings),
        _attempts(told.job),
        _replicas(told.facts, told.job),
        _given(told.given),
        _evidence(told.evidence),
    )
    return "\n".join(line for section in sections for line in section) + "\n"


def spread(count: int, most: int) -> list[int]:
    """At most `most` of the indices 0 … count - 1, evenly, first and last included."""
    if count <= most:
        return [*range(count)]
    return sorted({round(index * (count - 1) / (most - 1)) for index in range(most)})


# --- the sections; each is lines, and none where there is nothing to say


def _head(told: ReportView) -> Iterator[str]:
    job = told.job
    gpus = "all GPUs of each" if job.gpus_per_node is None else counted(job.gpus_per_node, "GPU") + " each"
    yield f"# {_text(job.name)}: {job.state}"
    yield ""
    yield _line(job.verdict)
    yield ""
    yield from _table(
        ("", ""),
        (
            ("job", job.id),
            (
                "asked for",
                f"{counted(job.nodes, 'replica')}, {gpus if job.gpus_per_node != 0 else 'on the CPU'}",
            ),
            ("attempts", job.attempts),
            ("submitted", _instant(job.created_at)),
            ("started", _instant(job.started_at)),
            ("ended", _instant(job.ended_at)),
            ("took", between(job.started_at, job.ended_at)),
        ),
    )
    yield ""
    whole = "" if job.state in TERMINAL_STATES else " The job still runs."
    yield f"Written by rankcall {_text(told.version)} at {_instant(told.made_at)}.{whole}"


def _result(job: JobView) -> Iterator[str]:
    if not job.artifacts:
        return
    total = sum(artifact.size_bytes for artifact in job.artifacts)
    yield from _heading("Result")
    yield f"{_line(job.result_folder or '')}: {counted(len(job.artifacts), 'file')}, {size(total)}"
    yield ""
    yield from _table(
        ("file", "size", "SHA-256", "on"),
        ((a.path, size(a.size_bytes), a.sha256, a.hostname or a.replica_id) for a in job.artifacts),
    )


def _training(progress: ProgressView | None, curve: Sequence[CurvePoint]) -> Iterator[str]:
    if progress is None:
        return
    rows = [
        ("steps", f"{progress.step} of {progress.total_steps}" if progress.total_steps else progress.step),
        ("training loss, mean", _figure(progress.train_loss)),
        ("loss", _figure(progress.loss)),
        ("evaluation loss", _figure(progress.eval_loss)),
        ("perplexity", _figure(progress.perplexity)),
        ("seconds a step", _figure(progress.step_s)),
        ("tokens a second", _figure(progress.tokens_per_s)),
        ("training took", duration(progress.train_runtime_s) if progress.train_runtime_s else ""),
        ("ranks", progress.world_size or ""),
        ("parameters trained", _parameters(progress)),
        ("memory", _memory(progress)),
    ]
    yield from _heading("Training")
    yield from _table(("", ""), [row for row in rows if row[1] != ""])
    if curve:
        yield ""
        yield from _table(
            ("step", "loss", "evaluation loss", "learning rate", "tokens a second"),
            (
                (
                    p.step,
                    _figure(p.loss),
                    _figure(p.eval_loss),
                    _figure(p.learning_rate),
                    _figure(p.tokens_per_s),
                )
                for p in curve
            ),
        )


def _answers(job: JobView) -> Iterator[str]:
    if not job.comparison:
        return
    yield from _heading("Before and after")
    yield "The same prompts, the same decoding; repeated: the share of four-word sequences that were said before."
    for answer in job.comparison:
        yield from ("", "Prompt:", "")
        yield from _block(answer.prompt)
        for who, said, repeated in (
            ("Base", answer.base, answer.base_repetition),
            ("Tuned", answer.tuned, answer.tuned_repetition),
        ):
            yield from ("", f"{who}, {repeated:.0%} repeated:", "")
            yield from _block(said)


def _findings(findings: Sequence[Finding]) -> Iterator[str]:
    if not findings:
        return
    yield from _heading("Findings")
    for one in findings:
        where = ":".join(str(part) for part in (one.file, one.line, one.key) if part not in (None, ""))
        places = [text for text in (one.stage, one.replica, where) if text]
        yield f"- **{one.severity} {one.code}** {_text(', '.join(places))}"
        yield f"  {_line(one.message)}"
        if one.hint:
            yield f"  *{_text(one.hint)}*"
        for name in ("traceback", "tail"):
            lines = one.evidence.get(name)
            if isinstance(lines, list) and lines:
                yield ""
                yield from (f"  {line}" for line in _block("\n".join(map(str, lines))))
    yield from ("", "`rankcall explain CODE` says of each what it means, why it matters and what to do.")


def _attempts(job: JobView) -> Iterator[str]:
    attempts = [*job.previous, *([job.attempt] if job.attempt else [])]
    for attempt in sorted(attempts, key=lambda one: one.number):
        yield from _heading(f"Attempt {attempt.number}: {attempt.outcome or attempt.state}")
        yield from _attempt(attempt)


def _attempt(attempt: AttemptView) -> Iterator[str]:
    yield f"From {_instant(attempt.created_at)} to {_instant(attempt.ended_at)}."
    yield ""
    yield from _table(
        ("stage", "state", "took", "summary"),
        ((s.stage, s.state, between(s.started_at, s.ended_at), s.summary) for s in attempt.stages),
    )
    for stage in attempt.stages:
        yield from _figures(stage)
    yield ""
    yield from _table(
        ("rank", "replica", "host", "address"),
        ((m.rank, m.replica_id, m.hostname, m.address) for m in attempt.members),
    )


def _figures(stage: StageView) -> Iterator[str]:
    """What a stage measured, where it is numbers and words."""
    plainly = {k: v for k, v in stage.figures.items() if isinstance(v, str | int | float) and v != ""}
    if plainly:
        yield ""
        said = ", ".join(f"{name} {_figure(value)}" for name, value in plainly.items())
        yield f"{stage.stage.value}: {_text(said)}"


def _replicas(facts: dict[str, Facts], job: JobView) -> Iterator[str]:
    if not facts:
        return
    names = {member.replica_id: member.hostname for member in (job.attempt.members if job.attempt else ())}
    known = [*facts.items()]
    packages = sorted({name for _, fact in known for name in fact.packages})
    rows: list[tuple[str, list[str]]] = [
        ("GPUs", [_gpus(fact) for _, fact in known]),
        ("driver", [fact.driver or "" for _, fact in known]),
        ("CUDA", [fact.cuda or "" for _, fact in known]),
        ("NCCL", [fact.nccl or "" for _, fact in known]),
        ("processors", [str(fact.cpu_count or "") for _, fact in known]),
        ("memory", [size(fact.memory_bytes) if fact.memory_bytes else "" for _, fact in known]),
        ("kernel", [fact.kernel or "" for _, fact in known]),
        ("Python", [fact.python or "" for _, fact in known]),
        *((name, [fact.packages.get(name, "") for _, fact in known]) for name in packages),
    ]
    yield from _heading("Replicas")
    yield from _table(
        ("", *(names.get(replica_id) or replica_id for replica_id, _ in known)),
        ((name, *cells) for name, cells in rows if any(cells)),
    )


def _given(given: RenderedView | None) -> Iterator[str]:
    if given is None:
        return
    yield from _heading(f"What rank {given.rank} was given")
    yield "The other ranks got the same but for `machine_rank`, and for the interface where theirs has another name."
    for file in given.files:
        yield from ("", f"{_line(file.path)}, SHA-256 {file.sha256}:", "")
        yield from _block(file.content, _LANGUAGES.get(file.path.rpartition(".")[2], ""))
    yield from ("", "Environment:", "")
    yield from _block("\n".join(f"{name}={value}" for name, value in sorted(given.environment.items())))
    yield from ("", "Command:", "")
    yield from _block(" ".join(given.argv))


def _evidence(kept: Sequence[EvidenceView]) -> Iterator[str]:
    if not kept:
        return
    yield from _heading("Evidence")
    yield "What the agents kept of a training that hung."
    for one in kept:
        whole = len(one.text.encode()) >= one.size_bytes
        cut = "" if whole else f", the last {size(len(one.text.encode()))} of {size(one.size_bytes)}"
        yield from ("", f"Attempt {one.attempt}, rank {one.rank}, {_text(one.stream)}{cut}:", "")
        yield from _block(one.text)


# --- Markdown


def _heading(words: str) -> tuple[str, str, str]:
    return ("", f"## {_text(words)}", "")


def _text(words: object) -> str:
    """Foreign words within a line: one line, and no marks of Markdown or HTML in effect."""
    return _MARKS.sub(r"\\\1", " ".join(plain(words).split()))


def _line(words: object) -> str:
    """Foreign words that begin a line: neither a heading nor an item of a list."""
    return _BEGINNINGS.sub(
        lambda found: f"\\{found[1]}" if not found[1].isdigit() else f"{found[1]}\\", _text(words)
    )


def _block(content: str, language: str = "") -> list[str]:
    """Foreign text as it is, in a fence that it cannot end."""
    longest = max((len(found) for found in _FENCES.findall(content)), default=2)
    fence = "`" * (longest + 1)
    return [f"{fence}{language}", *plain(content).rstrip("\n").split("\n"), fence]


def _table(headings: Sequence[object], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    yield _row(headings)
    yield _row(["---"] * len(headings), escaped=True)
    for row in rows:
        yield _row(row)


def _row(cells: Sequence[object], *, escaped: bool = False) -> str:
    return f"| {' | '.join(str(cell) if escaped else _text(cell) for cell in cells)} |"


# --- figures


def _figure(value: object) -> str:
    """Four digits that count; whole numbers as they are."""
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _instant(at: datetime | None) -> str:
    return "–" if at is None else at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _parameters(progress: ProgressView) -> str:
    trained, whole = progress.trainable_parameters, progress.all_parameters
    if not trained or not whole:
        return ""
    return f"{trained:,} of {whole:,} ({trained / whole:.4%})"


def _memory(progress: ProgressView) -> str:
    if not progress.memory_bytes:
        return ""
    of = f" of {size(progress.memory_total_bytes)}" if progress.memory_total_bytes else ""
    return size(progress.memory_bytes) + of


def _gpus(facts: Facts) -> str:
    counts: dict[str, int] = {}
    for gpu in facts.gpus:
        counts[gpu.name] = counts.get(gpu.name, 0) + 1
    return ", ".join(f"{count} × {name}" for name, count in counts.items())
