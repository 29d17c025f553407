"""The deep check: Axolotl's own schema has the last word on its keys.

It is told the GPUs that the job is for, never asks those of the machine that checks. Called by the command line
(`check --deep`) and for submissions (`second_opinion.py`); blocks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from coordinator.checks.axolotl_process import AxolotlSchema, Unavailable
from coordinator.checks.axolotl_said import findings_of
from coordinator.checks.check import examine, verdict
from coordinator.checks.deepspeed_schema import FORMER_COMPILE_KEYS
from coordinator.checks.files import Files
from coordinator.checks.gpus import Gpu
from coordinator.checks.subject import Purpose, Subject, mapping
from coordinator.core import yaml
from coordinator.core.catalogue import finding
from coordinator.core.protocol import Facts, Finding
from coordinator.core.views import CheckVerdict, Submission

# Where nothing is known: a GPU that can do what configs commonly ask for.
_ORDINARY = (9, 0)


def deep_check(
    submission: Submission,
    schema: AxolotlSchema,
    *,
    files: Files,
    facts: tuple[Facts, ...] = (),
    data_roots: Sequence[str] = (),
    purpose: Purpose = "check",
    gpu: Gpu | None = None,
) -> CheckVerdict:
    """As `check`, and Axolotl is asked too; where neither facts nor `gpu` say for which GPU, about an ordinary one."""
    subject, found = examine(
        submission, files=files, facts=facts, data_roots=data_roots, purpose=purpose, gpu=gpu
    )
    if subject is not None:
        try:
            found.extend(axolotls_word(subject, found, schema))
        except Unavailable as why:
            found.append(finding("CFG902", f"{why}."))
    return verdict(found, submission.allow)


def axolotls_word(subject: Subject, found: Sequence[Finding], schema: AxolotlSchema) -> tuple[Finding, ...]:
    """What Axolotl and DeepSpeed say beyond what has been found: CFG901, CFG903, CFG904, and CFG902 where they cannot say all.

    Raises:
        Unavailable: Axolotl cannot be asked.
    """
    use = next((one for one in subject.deepspeed if one.by != "accelerate"), None)
    question = {
        # As text, because JSON makes text of every key and knows no dates: the answer is about what was written.
        "config": yaml.dump(subject.settings),
        "capabilities": capabilities(subject),
        "torch": next(
            (f.packages["torch"].split("+")[0] for f in subject.facts if "torch" in f.packages), None
        ),
        "deepspeed": _without_former(use.values) if use is not None else None,
    }
    return findings_of(subject, found, schema.ask(question), use)


def _without_former(values: Mapping[str, object] | None) -> Mapping[str, object] | None:
    """Without what rankcall leaves out when it writes the file."""
    if values is None or not any(key in mapping(values.get("compile")) for key in FORMER_COMPILE_KEYS):
        return values
    kept = {k: v for k, v in mapping(values["compile"]).items() if k not in FORMER_COMPILE_KEYS}
    return {**values, "compile": kept}


def capabilities(subject: Subject) -> dict[str, object]:
    """What Axolotl is told about the GPUs: the weakest of the replicas', else the one named, else an ordinary one."""
    known = [
        tuple(int(part) for part in one.compute_capability.split("."))
        for facts in subject.facts
        for one in facts.gpus
        if one.compute_capability and re.fullmatch(r"\d+\.\d+", one.compute_capability)
    ]
    named = subject.gpu.capability if subject.gpu is not None else _ORDINARY
    capability = min(known) if known else named
    return {
        "bf16": capability >= (8, 0),
        "tf32": capability >= (8, 0),
        "fp8": capability >= (8, 9),
        "n_gpu": subject.world or 1,
        "n_node": subject.nodes or 1,
        "compute_capability": f"sm_{capability[0]}{capability[1]}",
    }
