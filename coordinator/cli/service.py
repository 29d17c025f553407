"""Verbs that run something here: up, coordinator, agent, demo."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer


def add_to(app: typer.Typer) -> None:
    for verb in (up, coordinator, agent, demo):
        app.command()(verb)


def up() -> None:
    """Start this replica: the container's start command, the same on all of them.

    The coordinator is found by RANKCALL_URL, or by RANKCALL_PEERS (addresses; the first is the master), or
    by a lease in RANKCALL_SHARED_DIR; where none is set, or where it is this replica, it is started here.
    SIGTERM or Ctrl-C ends the training of this replica and leaves nothing behind.
    """
    _become("coordinator.up")


def coordinator() -> None:
    """Run the coordinator alone (`rankcall up` starts it where it belongs)."""
    _become("coordinator")


def agent() -> None:
    """Run the agent alone (`rankcall up` starts it on every replica)."""
    _become("agent")


def _become(module: str) -> None:
    """This process turns into another, which does not carry the command line's imports."""
    from coordinator.core import interrupt

    sys.stdout.flush()
    sys.stderr.flush()
    interrupt.hold_back()
    os.execv(sys.executable, [sys.executable, "-m", module])  # noqa: S606


def demo(
    nodes: Annotated[int, typer.Option("--nodes", min=1, max=200, help="Replicas.")] = 2,
    stay: Annotated[bool, typer.Option("--stay", help="Keep the page up at the end, until Ctrl-C.")] = False,
    port: Annotated[
        int | None,
        typer.Option(
            "--port", min=0, max=65535, help="Of the page; 0 takes a free one [default: 8000 if free]."
        ),
    ] = None,
) -> None:
    """Fine-tune a small model on replicas of this machine, with the real stack and no GPU, and show it."""
    from coordinator.cli.exits import Exit, Stop
    from coordinator.demo.run import run

    code = run(nodes=nodes, stay=stay, port=port)
    if code:
        raise Stop(Exit(code))
