"""Verbs that need no coordinator: check, render, explain, doctor."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from coordinator.cli.options import Accelerate, Config, Deepspeed, Gpus, Json, Nodes, Overrides


def add_to(app: typer.Typer) -> None:
    for verb in (check, render, explain, doctor):
        app.command()(verb)


def check(
    config: Config,
    nodes: Nodes = None,
    gpus_per_node: Gpus = None,
    overrides: Overrides = None,
    accelerate: Accelerate = None,
    deepspeed: Deepspeed = None,
    allow: Annotated[
        list[str] | None, typer.Option("--allow", metavar="CODE", help="Take this finding for a warning.")
    ] = None,
    deep: Annotated[
        bool,
        typer.Option("--deep", help="Ask Axolotl's own schema too (where it is installed; takes seconds)."),
    ] = False,
    gpu: Annotated[
        str | None,
        typer.Option("--gpu", metavar="NAME", help="The GPU the job is for, such as 'RTX 5090' or sm_120."),
    ] = None,
    fix: Annotated[
        bool, typer.Option("--fix", help="Write corrected files beside the originals (NAME.fixed.yml).")
    ] = False,
    json: Json = False,
) -> None:
    """Judge a configuration without running it: exit 0 accepts it, 1 rejects it, with the reasons.

    A file brought with --accelerate is judged as if it were launched as it stands.
    """
    from coordinator.cli.check import check_files
    from coordinator.cli.submission import Asked

    asked = Asked(
        config=config,
        overrides=tuple(overrides or ()),
        nodes=nodes,
        gpus_per_node=gpus_per_node,
        accelerate=accelerate,
        deepspeed=deepspeed,
        allow=tuple(allow or ()),
    )
    check_files(asked, deep=deep, gpu=gpu, fix=fix, json=json)


def render(
    config: Config,
    nodes: Annotated[int, typer.Option("--nodes", min=1, max=4096, help="Replicas to train on.")],
    master_addr: Annotated[str, typer.Option("--master-addr", metavar="IP", help="Address of rank 0.")],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="DIR", help="Write a folder for each rank here.")
    ] = None,
    gpus_per_node: Annotated[
        int, typer.Option("--gpus-per-node", min=0, max=64, help="GPUs of each replica; 0 trains on the CPU.")
    ] = 1,
    master_port: Annotated[
        int, typer.Option("--master-port", min=1, max=65535, help="Of the rendezvous.")
    ] = 29500,
    rank: Annotated[int | None, typer.Option("--rank", min=0, help="Only this rank [default: all].")] = None,
    interface: Annotated[
        str | None, typer.Option("--interface", help="The one that routes to the peers, such as eth0.")
    ] = None,
    overrides: Overrides = None,
    accelerate: Accelerate = None,
    deepspeed: Deepspeed = None,
    prompt: Annotated[
        list[str] | None, typer.Option("--prompt", help="Answered by base and tuned model at the end.")
    ] = None,
    allow: Annotated[
        list[str] | None, typer.Option("--allow", metavar="CODE", help="Render in spite of this finding.")
    ] = None,
    why: Annotated[
        bool, typer.Option("--why", help="Say the reason for every value that was chosen.")
    ] = False,
    json: Json = False,
) -> None:
    """Write what each rank would get: files, environment and commands; exit 1 where `check` would reject the config."""
    from coordinator.cli.render import Wanted, render_all
    from coordinator.cli.submission import Asked

    asked = Asked(
        config=config,
        overrides=tuple(overrides or ()),
        nodes=nodes,
        gpus_per_node=gpus_per_node,
        prompts=tuple(prompt or ()),
        accelerate=accelerate,
        deepspeed=deepspeed,
        allow=tuple(allow or ()),
    )
    wanted = Wanted(nodes, gpus_per_node, master_addr, master_port, rank, interface)
    render_all(asked, wanted, output=output, why=why, json=json)


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


def doctor(json: Json = False) -> None:
    """Look this container over: versions, ports, disks, caches, leftovers, the way to the coordinator."""
    from coordinator.cli.doctor import examine

    examine(json=json)
