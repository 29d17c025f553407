"""Assignment → text: everything one rank gets, rendered and parsed back. Pure.

`render` is called by `assignment.py` for each replica of an attempt and by `rankcall render`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from coordinator.core.protocol import RenderedFile
from coordinator.core.views import Submission
from coordinator.core.words import counted
from coordinator.core.yaml import dump, load
from coordinator.render.accelerate import accelerate_reasons, accelerate_values
from coordinator.render.axolotl import axolotl_values, compare_values, output_dir, resumed
from coordinator.render.deepspeed import deepspeed_values, zero_stage
from coordinator.render.environment import UNSET, environment
from coordinator.render.model import (
    ACCELERATE_FILE,
    AXOLOTL_FILE,
    COMPARE_FILE,
    DEEPSPEED_FILE,
    Reason,
    Rendered,
    RenderError,
    Site,
    Topology,
)
from coordinator.render.submitted import read

__all__ = ["Reason", "RenderError", "Rendered", "Site", "Topology", "render"]


def render(
    submission: Submission,
    topology: Topology,
    site: Site,
    attempt_number: int = 1,
    resume: str | None = None,
) -> Rendered:
    """All that the replica at `site` gets for this attempt.

    Args:
        resume: the checkpoint that a further attempt goes on from, a folder in output_dir.

    Raises:
        RenderError: for a submission that cannot be read, or a rank outside the topology.
    """
    if not 0 <= site.rank < topology.nodes:
        raise RenderError(f"rank {site.rank} is not among {counted(topology.nodes, 'node')}")
    given = read(submission)
    folder = f"../attempt-{attempt_number}"
    files: list[RenderedFile] = []
    reasons: list[Reason] = []

    deepspeed_path = None
    stage = None
    if given.deepspeed is not None:
        deepspeed_path, stage = given.deepspeed.name, None
        if given.deepspeed.values is not None:
            values, why = deepspeed_values(given.deepspeed.values, on_cpu=topology.on_cpu)
            files.append(_json_file(DEEPSPEED_FILE, values))
            reasons += why
            deepspeed_path, stage = f"{folder}/{DEEPSPEED_FILE}", zero_stage(values)

    accelerate = accelerate_values(
        topology, site.rank, deepspeed_path=deepspeed_path, zero_stage=stage, brought=given.accelerate
    )
    reasons += accelerate_reasons(accelerate)
    axolotl, why = axolotl_values(given.config, topology, deepspeed_path=deepspeed_path)
    reasons += why
    if attempt_number > 1:
        axolotl, why = resumed(axolotl, resume)
        reasons += why
    files += [_yaml_file(ACCELERATE_FILE, accelerate), _yaml_file(AXOLOTL_FILE, axolotl)]
    if given.prompts:
        files.append(_json_file(COMPARE_FILE, compare_values(axolotl, given.prompts)))

    variables, why = environment(topology, site, folder)
    return Rendered(
        files=tuple(files),
        environment=variables,
        unset=UNSET,
        prepare_argv=("python", "-m", "agent.prepare", f"{folder}/{AXOLOTL_FILE}"),
        train_argv=(
            *("python", "-m", "accelerate.commands.launch", "--config_file", f"{folder}/{ACCELERATE_FILE}"),
            *("-m", "axolotl.cli.train", f"{folder}/{AXOLOTL_FILE}"),
        ),
        compare_argv=("python", "-m", "agent.compare", f"{folder}/{COMPARE_FILE}") if given.prompts else None,
        output_dir=output_dir(axolotl),
        reasons=(*reasons, *why),
    )


def _yaml_file(path: str, values: Mapping[str, object]) -> RenderedFile:
    content = dump(values)
    if load(content, path) != values:
        raise RenderError("what was written does not read back the same", file=path)
    return _file(path, content)


def _json_file(path: str, values: Mapping[str, object]) -> RenderedFile:
    try:
        content = json.dumps(values, indent=2, ensure_ascii=False) + "\n"
    except (TypeError, ValueError) as error:  # YAML holds dates and bytes, JSON does not
        raise RenderError(f"cannot be written as JSON: {error}", file=path) from None
    if json.loads(content) != values:
        raise RenderError("what was written does not read back the same", file=path)
    return _file(path, content)


def _file(path: str, content: str) -> RenderedFile:
    return RenderedFile(path=path, content=content, sha256=hashlib.sha256(content.encode()).hexdigest())
