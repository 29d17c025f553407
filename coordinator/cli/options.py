"""Options that several verbs share, each written once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def _pairs(values: list[str] | None) -> list[str] | None:
    for value in values or ():
        if not value.partition("=")[0].strip() or "=" not in value:
            raise typer.BadParameter(f"Write KEY=VALUE, not {value!r}.")
    return values


Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]
JobId = Annotated[str, typer.Argument(metavar="ID", help="The job's id.")]
Config = Annotated[Path, typer.Argument(metavar="CONFIG", help="The Axolotl configuration (YAML).")]
Nodes = Annotated[
    int | None,
    typer.Option("--nodes", min=1, max=4096, help="Replicas to train on [default: all there are]."),
]
Gpus = Annotated[
    int | None,
    typer.Option(
        "--gpus-per-node",
        min=0,
        max=64,
        help="GPUs of each replica; 0 trains on the CPU [default: all it has].",
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        callback=_pairs,
        help="Override a key of the config (a.b=value). Repeatable.",
    ),
]
Accelerate = Annotated[
    Path | None, typer.Option("--accelerate", metavar="FILE", help="An accelerate configuration of your own.")
]
Deepspeed = Annotated[
    Path | None, typer.Option("--deepspeed", metavar="FILE", help="A DeepSpeed JSON of your own.")
]
Allow = Annotated[
    list[str] | None,
    typer.Option("--allow", metavar="CODE", help="Go on in spite of this finding. Repeatable."),
]
Deadline = Annotated[
    list[str] | None,
    typer.Option("--deadline", metavar="STAGE=TIME", help="Such as gather=10m. Repeatable."),
]
Watch = Annotated[bool, typer.Option("--watch", "-w", help="Follow it to its end; Ctrl-C detaches.")]
