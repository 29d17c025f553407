"""The typer application: every verb, in the order of `rankcall --help`."""

from __future__ import annotations

import typer

from coordinator.cli import jobs, offline, preflight, replicas, service

app = typer.Typer(
    name="rankcall",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for group in (jobs, replicas, preflight, offline, service):
    group.add_to(app)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(version("rankcall"))
        raise typer.Exit


@app.callback()
def rankcall(
    _version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version."
    ),
) -> None:
    """Multi-node LLM fine-tuning on rented GPU containers, without SSH between them.

    RANKCALL_URL says where the coordinator is (this machine if unset), RANKCALL_TOKEN is its token.

    Exit codes: 0 good, 1 the job or check failed, 2 usage, 3 coordinator unreachable or not authorised,
    4 preflight failed, 101 still running, 102 no such thing, 103 cancelled, 124 deadline, 130 interrupted.
    """
