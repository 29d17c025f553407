"""`rankcall preflight`: the handshake without a job, watched to its end, and its grid of links."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from coordinator.cli.options import Allow, Deadline, Gpus, Json

if TYPE_CHECKING:
    from coordinator.core.views import LinkGrid, PreflightView


def add_to(app: typer.Typer) -> None:
    app.command()(preflight)


def preflight(
    preflight_id: Annotated[
        str | None,
        typer.Argument(metavar="ID", help="Show this one (or a job's links) instead of starting another."),
    ] = None,
    nodes: Annotated[
        int | None,
        typer.Option("--nodes", min=1, max=4096, help="Replicas to test [default: all there are]."),
    ] = None,
    gpus_per_node: Gpus = None,
    allow: Allow = None,
    deadline: Deadline = None,
    json: Json = False,
) -> None:
    """Prove every link between the replicas without a job: facts, raw TCP, a pure collective.

    The exit code is the result: 0 passed, 4 failed, 124 not enough replicas in time. Ctrl-C detaches.
    """
    import secrets

    from coordinator.cli.console import say
    from coordinator.cli.exits import Stop, of_job
    from coordinator.cli.remote import Remote
    from coordinator.cli.submission import deadlines
    from coordinator.cli.watch import say_outcome, watch_job
    from coordinator.core.views import PreflightRequest

    limits = deadlines(deadline or ())
    with Remote() as remote:
        if preflight_id is None:
            asked = PreflightRequest(
                nodes=nodes, gpus_per_node=gpus_per_node, deadlines=limits, allow=tuple(allow or ())
            )
            preflight_id = remote.start_preflight(asked, secrets.token_hex(16)).id
            say(f"preflight {preflight_id}")
        elif remote.job(preflight_id).kind != "preflight":
            _write(remote.links(preflight_id), json=json)
            return
        ended = watch_job(remote, preflight_id, "rankcall preflight {}")
        say_outcome(ended)
        view = remote.preflight(preflight_id)
    _write(view, json=json)
    raise Stop(of_job(ended))


def _write(view: PreflightView | LinkGrid, *, json: bool) -> None:
    from coordinator.cli.console import write_json
    from coordinator.cli.linkgrid import write_grid
    from coordinator.core.views import LinkGrid

    if json:
        write_json(view)
    elif isinstance(view, LinkGrid):
        write_grid(view)
    elif view.grid is not None:
        write_grid(view.grid)
