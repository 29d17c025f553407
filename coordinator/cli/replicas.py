"""Verbs about replicas: nodes."""

from __future__ import annotations

import typer

from coordinator.cli.options import Json


def add_to(app: typer.Typer) -> None:
    app.command()(nodes)


def nodes(json: Json = False) -> None:
    """List the replicas that registered, what they have and what they do."""
    from coordinator.cli.console import say, write_json, write_table
    from coordinator.cli.remote import Remote
    from coordinator.core.words import duration

    with Remote() as remote:
        page = remote.replicas()
    if json:
        write_json(page)
        return
    write_table(
        ("REPLICA", "HOST", "ADDRESS", "RANK", "GPUS", "STATE", "JOB", "SEEN"),
        (
            (
                item.id,
                item.hostname,
                item.addresses[0] if item.addresses else "–",
                "–" if item.rank is None else item.rank,
                _gpus(item.gpu_count, [gpu.name for gpu in item.facts.gpus] if item.facts else []),
                item.role if item.alive else "gone",
                item.job_id or "–",
                f"{duration(item.last_seen_s)} ago",
            )
            for item in page.items
        ),
    )
    if page.message:
        say(page.message)


def _gpus(count: int, names: list[str]) -> str:
    if not count:
        return "CPU"
    return f"{count} × {names[0]}" if names and len(set(names)) == 1 else str(count)
