"""Verbs about jobs: submit, jobs, job, logs, cancel, retry, artifacts, report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

import typer

from coordinator.cli.options import (
    Accelerate,
    Allow,
    Config,
    Deadline,
    Deepspeed,
    Gpus,
    JobId,
    Json,
    Nodes,
    Overrides,
    Watch,
)

if TYPE_CHECKING:
    from coordinator.cli.remote import Remote
    from coordinator.core.views import JobView


def add_to(app: typer.Typer) -> None:
    for verb in (submit, jobs, job, logs, cancel, retry, artifacts, report):
        app.command()(verb)


def submit(
    config: Config,
    watch: Watch = False,
    nodes: Nodes = None,
    gpus_per_node: Gpus = None,
    overrides: Overrides = None,
    prompt: Annotated[
        list[str] | None,
        typer.Option("--prompt", help="Answered by base and tuned model at the end. Repeatable."),
    ] = None,
    prompts_file: Annotated[
        Path | None, typer.Option("--prompts-file", metavar="FILE", help="Prompts, one a line.")
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", help="What to call the job [default: the config's].")
    ] = None,
    accelerate: Accelerate = None,
    deepspeed: Deepspeed = None,
    attempts: Annotated[int, typer.Option("--attempts", min=1, max=20, help="Tries at most.")] = 1,
    allow: Allow = None,
    deadline: Deadline = None,
    idempotency_key: Annotated[
        str | None,
        typer.Option("--idempotency-key", help="The same key again gives the same job, not another one."),
    ] = None,
    json: Json = False,
) -> None:
    """Submit a fine-tune. Prints the job's id; files that CONFIG names beside itself travel with it."""
    import secrets

    from coordinator.cli.console import say
    from coordinator.cli.remote import Remote
    from coordinator.cli.submission import Asked, build
    from coordinator.core.words import size

    submission = build(
        Asked(
            config=config,
            overrides=tuple(overrides or ()),
            nodes=nodes,
            gpus_per_node=gpus_per_node,
            name=name,
            prompts=tuple(prompt or ()),
            prompts_file=prompts_file,
            accelerate=accelerate,
            deepspeed=deepspeed,
            attempts=attempts,
            allow=tuple(allow or ()),
            deadlines=tuple(deadline or ()),
        )
    )
    if submission.files:
        total = sum(len(file.data) for file in submission.files)
        travel = "file travels" if len(submission.files) == 1 else "files travel"
        say(f"{len(submission.files)} {travel} with {config.name} ({size(total)}).")
    with Remote() as remote:
        made, new = remote.submit(submission, idempotency_key or secrets.token_hex(16))
        if not new:
            say(f"This submission is job {made.id} already.")
        _present(remote, made, watch=watch, json=json)


def _present(remote: Remote, job: JobView, *, watch: bool, json: bool) -> None:
    """Says what became of an order: the id at once; with `watch` the rest as it happens, and its exit code."""
    from coordinator.cli.console import say, say_finding, write, write_json
    from coordinator.cli.exits import Stop, of_job

    if not json:
        write(job.id)
    if not watch:
        for finding in job.findings:
            say_finding(finding)
        if json:
            write_json(job)
        else:
            say(f"{job.name}: {job.verdict or job.state}")
            say(f"Follow it with: rankcall job {job.id} --watch")
        return
    from coordinator.cli.watch import say_outcome, watch_job

    ended = watch_job(remote, job.id)
    say_outcome(ended)
    if json:
        write_json(ended)
    raise Stop(of_job(ended))


def jobs(
    limit: Annotated[int, typer.Option("--limit", min=1, max=1000, help="How many, the newest first.")] = 20,
    state: Annotated[
        str | None,
        typer.Option("--state", help="Only those: queued, running, succeeded, failed or cancelled."),
    ] = None,
    json: Json = False,
) -> None:
    """List jobs, the newest first."""
    from coordinator.cli.console import clock, write_json, write_table
    from coordinator.cli.exits import Exit, Stop
    from coordinator.cli.remote import Remote
    from coordinator.core.views import JobState

    if state is not None and state not in (states := get_args(JobState)):
        raise Stop(Exit.USAGE, f"--state {state} is none of {', '.join(states)}.")
    with Remote() as remote:
        page = remote.jobs(limit=limit, state=state)
    if json:
        write_json(page)
        return
    write_table(
        ("ID", "NAME", "STATE", "STAGE", "NODES", "CREATED", "VERDICT"),
        (
            (item.id, item.name, item.state, item.stage, item.nodes, clock(item.created_at), item.verdict)
            for item in page.items
        ),
    )


def job(job_id: JobId, watch: Watch = False, json: Json = False) -> None:
    """Show a job. The exit code is its state: 0 succeeded, 1, 4 or 124 failed, 101 not ended, 103 cancelled."""
    from coordinator.cli.console import write_json
    from coordinator.cli.exits import Stop, of_job
    from coordinator.cli.remote import Remote

    with Remote() as remote:
        if watch:
            from coordinator.cli.watch import say_outcome, watch_job

            shown = watch_job(remote, job_id)
            say_outcome(shown)
        else:
            shown = remote.job(job_id)
    if json:
        write_json(shown)
    elif not watch:
        from coordinator.cli.jobcard import write_job

        write_job(shown)
    raise Stop(of_job(shown))


def logs(
    job_id: JobId,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as it grows; Ctrl-C stops.")] = False,
    rank: Annotated[int, typer.Option("--rank", min=0, help="Whose.")] = 0,
    stream: Annotated[
        str, typer.Option("--stream", help="train.log, prepare.log, compare.log, progress.0 …")
    ] = "train.log",
    attempt: Annotated[
        int | None, typer.Option("--attempt", min=1, help="Of which attempt [default: the newest].")
    ] = None,
    json: Json = False,
) -> None:
    """Print what a rank wrote, byte for byte; with --json, one JSON object a line."""
    from coordinator.cli.logs import print_log
    from coordinator.cli.remote import Remote

    with Remote() as remote:
        print_log(remote, job_id, rank=rank, stream=stream, attempt=attempt, follow=follow, json=json)


def cancel(job_id: JobId, watch: Watch = False, json: Json = False) -> None:
    """End a job and its training on every replica."""
    from coordinator.cli.console import say, write_json
    from coordinator.cli.remote import Remote
    from coordinator.core.views import TERMINAL_STATES

    with Remote() as remote:
        cancelled = remote.cancel(job_id)
        if watch:
            from coordinator.cli.watch import say_outcome, watch_job

            cancelled = watch_job(remote, job_id)
            say_outcome(cancelled)
    if json:
        write_json(cancelled)
    elif not watch:
        over = cancelled.state in TERMINAL_STATES
        say(f"{cancelled.name} ({cancelled.id}) {'is cancelled' if over else 'is being cancelled'}.")


def retry(job_id: JobId, watch: Watch = False, json: Json = False) -> None:
    """Try a job that has ended once more, on the same replicas with the same ranks where they are there."""
    from coordinator.cli.remote import Remote

    with Remote() as remote:
        _present(remote, remote.retry(job_id), watch=watch, json=json)


def artifacts(
    job_id: JobId,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FOLDER", help="Download them to this folder.")
    ] = None,
    match: Annotated[
        str | None, typer.Option("--match", metavar="PATTERN", help="Only paths like this (`*.safetensors`).")
    ] = None,
    json: Json = False,
) -> None:
    """List the files of a job's result, or download them (resumed where it broke off, SHA-256 checked)."""
    from fnmatch import fnmatch

    from coordinator.cli.console import say, write_json, write_table
    from coordinator.cli.exits import Exit, Stop, of_job
    from coordinator.cli.remote import Remote
    from coordinator.core.views import TERMINAL_STATES
    from coordinator.core.words import counted, size

    with Remote() as remote:
        shown = remote.job(job_id)
        files = tuple(
            a
            for a in shown.artifacts
            if match is None or fnmatch(a.path, match) or fnmatch(Path(a.path).name, match)
        )
        if not files:
            hint = f"Job {job_id} is {shown.state}: {shown.verdict}" if not shown.artifacts else ""
            code = of_job(shown) if not shown.artifacts else Exit.NOT_FOUND
            ended = shown.state in TERMINAL_STATES
            what = (
                f"no artifact like {match}" if shown.artifacts else "no result" if ended else "no result yet"
            )
            code = Exit.FAILED if shown.state == "failed" and not shown.artifacts else code
            if json:
                write_json(files)
            raise Stop(Exit.NOT_FOUND if code == Exit.GOOD else code, f"There is {what}.", hint=hint)
        if output is not None:
            from coordinator.cli.download import download_all

            download_all(remote, job_id, files, output)
            say(f"{counted(len(files), 'file')} in {output}, each with the SHA-256 it had on the replica.")
    if json:
        write_json(files)
    elif output is None:
        write_table(
            ("ID", "PATH", "KIND", "SIZE", "SHA-256"),
            ((a.id, a.path, a.kind, size(a.size_bytes), a.sha256) for a in files),
        )


def report(
    job_id: JobId,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write it to this file.")
    ] = None,
    json: Json = False,
) -> None:
    """Everything about a job in one document (Markdown), to keep and to read without rankcall."""
    from coordinator.cli.console import say, write_json
    from coordinator.cli.exits import Exit, Stop
    from coordinator.cli.remote import Remote
    from coordinator.report import markdown

    with Remote() as remote:
        told = remote.report(job_id)
    if output is None and json:
        write_json(told)
        return
    document = told.model_dump_json(indent=2) + "\n" if json else markdown(told)
    if output is None:
        typer.echo(document, nl=False)
        return
    try:
        output.write_text(document, encoding="utf-8")
    except OSError as error:
        raise Stop(Exit.USAGE, f"{output} cannot be written: {error.strerror}.") from None
    say(f"The report of job {job_id} is in {output}.")
