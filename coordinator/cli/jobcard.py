"""A job on one screen, for `rankcall job ID`."""

from __future__ import annotations

from coordinator.cli.board import figures, mark, stage_duration, state_word
from coordinator.cli.console import clock, finding_lines, shortened, write, write_table
from coordinator.core.views import JobView
from coordinator.core.words import counted, size


def write_job(job: JobView) -> None:
    write(f"{job.name} ({job.id})  {job.state}")
    if job.verdict:
        write(job.verdict)
    gpus = "all it has" if job.gpus_per_node is None else job.gpus_per_node or "none, on the CPU"
    write(f"{counted(job.nodes, 'replica')}, GPUs of each: {gpus}, attempts {job.attempts}")
    write(f"created {clock(job.created_at)}, ended {clock(job.ended_at)}")
    if job.attempt is not None:
        write("")
        write_table(
            ("", "STAGE", "STATE", "TOOK", "SUMMARY"),
            (
                (mark(s)[0], s.stage, state_word(s), stage_duration(s), shortened(s.summary))
                for s in job.attempt.stages
            ),
        )
        write("")
        write_table(
            ("RANK", "REPLICA", "HOST", "ADDRESS", "HERE"),
            (
                (m.rank, m.replica_id, m.hostname, m.address, "yes" if m.alive else "no")
                for m in job.attempt.members
            ),
        )
    if job.progress is not None and job.progress.step:
        write("")
        write(figures(job.progress))
    if job.findings:
        write("")
        for finding in job.findings:
            for text, style in finding_lines(finding):
                write(text, style)
    if job.result_folder:
        total = sum(artifact.size_bytes for artifact in job.artifacts)
        write("")
        write(f"result: {job.result_folder} ({counted(len(job.artifacts), 'file')}, {size(total)})")
    for answer in job.comparison:
        write("")
        write(answer.prompt)
        write(f"  base  (repeats {answer.base_repetition:.0%}): {answer.base}")
        write(f"  tuned (repeats {answer.tuned_repetition:.0%}): {answer.tuned}")
