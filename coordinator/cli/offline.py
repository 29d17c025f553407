"""Verbs that need no coordinator: check, render, explain, doctor."""

from __future__ import annotations

from typing import Annotated

import typer

from coordinator.cli.options import Json


def add_to(app: typer.Typer) -> None:
    for verb in (explain,):
        app.command()(verb)


def explain(
    code: Annotated[str | None, typer.Argument(metavar="CODE", help="Such as NET003.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="List every code.")] = False,
    json: Json = False,
) -> None:
    """Say what a finding's code means, why it matters and what to do."""
    from coordinator.cli.exits import Exit, Stop
    from coordinator.cli.explain import explain_all, explain_one

    if everything:
        explain_all(json=json)
    elif code is None:
        raise Stop(Exit.USAGE, "Which code?", hint="rankcall explain CODE, or rankcall explain --all.")
    else:
        explain_one(code, json=json)
