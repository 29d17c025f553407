"""`check`: a submission in, a verdict out. Reads everything once, then asks every rule.

Called by the command line (`check`, `submit`), by `POST /checks` and as the first gate of `POST /jobs`.
Pure but for `Files`, the one window to where files lie.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence

from coordinator.checks import (
    accelerate,
    data,
    deepspeed,
    deepspeed_file,
    deepspeed_schema,
    features,
    keys,
    launch,
    names,
    precision,
    sharding,
    surroundings,
    syntax,
    training,
)
from coordinator.checks.files import Files
from coordinator.checks.gpus import Gpu
from coordinator.checks.subject import (
    DeepSpeedUse,
    Findings,
    Purpose,
    Subject,
    mapping,
    shown,
    whole,
)
from coordinator.core import overrides, yaml
from coordinator.core.catalogue import finding
from coordinator.core.protocol import Facts, Finding
from coordinator.core.views import CheckVerdict, Submission, SubmittedFile

Rule = Callable[[Subject], Findings]

RULES: tuple[Rule, ...] = (
    *accelerate.RULES,
    *launch.RULES,
    *keys.RULES,
    *names.RULES,
    *deepspeed.RULES,
    *deepspeed_schema.RULES,
    *sharding.RULES,
    *precision.RULES,
    *training.RULES,
    *features.RULES,
    *data.RULES,
    *surroundings.RULES,
)
# Nobody reads more; a broken file can have thousands.
MOST_FINDINGS = 100
_ORDER = {"error": 0, "warning": 1, "note": 2}


def check(
    submission: Submission,
    *,
    files: Files,
    facts: tuple[Facts, ...] = (),
    data_roots: Sequence[str] = (),
    purpose: Purpose = "check",
    gpu: Gpu | None = None,
) -> CheckVerdict:
    """Judge a submission.

    Args:
        submission: what the user brings.
        files: the files beside its config.
        facts: what the replicas have, where any are registered.
        data_roots: folders that the replicas allow absolute paths in; empty where it is not known.
        purpose: `check` judges an accelerate file as if it were launched as it stands; `submit` knows that
            rankcall writes the topology itself.
        gpu: what the job is for, where no facts say it.

    Returns:
        The verdict: `reject` exactly when a finding is an error that `submission.allow` does not name.
        Errors come first.
    """
    _, found = examine(submission, files=files, facts=facts, data_roots=data_roots, purpose=purpose, gpu=gpu)
    return verdict(found, submission.allow)


def examine(
    submission: Submission,
    *,
    files: Files,
    facts: tuple[Facts, ...] = (),
    data_roots: Sequence[str] = (),
    purpose: Purpose = "check",
    gpu: Gpu | None = None,
) -> tuple[Subject | None, list[Finding]]:
    """As `check`: what the rules looked at (None where the config cannot be read), and what they found."""
    found: list[Finding] = []
    subject = _read(submission, files, facts, tuple(data_roots), purpose, gpu, found)
    if subject is not None:
        found.extend(itertools.chain.from_iterable(rule(subject) for rule in RULES))
    return subject, found


def verdict(findings: Iterable[Finding], allow: Sequence[str] = ()) -> CheckVerdict:
    """The verdict on findings, each once, errors first; an error that is allowed counts as a warning."""
    once: dict[tuple[str, str | None, str | None, str], Finding] = {}
    for one in findings:
        allowed = one.severity == "error" and one.code in allow
        kept = one.model_copy(update={"severity": "warning"}) if allowed else one
        once.setdefault((one.code, one.file, one.key, one.message), kept)
    ordered = sorted(once.values(), key=lambda one: _ORDER[one.severity])[:MOST_FINDINGS]
    rejected = bool(ordered) and ordered[0].severity == "error"
    return CheckVerdict(verdict="reject" if rejected else "accept", findings=tuple(ordered))


def _read(
    submission: Submission,
    files: Files,
    facts: tuple[Facts, ...],
    data_roots: tuple[str, ...],
    purpose: Purpose,
    gpu: Gpu | None,
    found: list[Finding],
) -> Subject | None:
    """The subject of the rules; None where the config cannot be read. What is wrong with files goes to `found`."""
    document = _document(submission.config_name, submission.config, frozenset(keys.key_table().keys), found)
    theirs = submission.accelerate
    accelerate_file = (
        _document(theirs.name, theirs.text, accelerate.KEYS, found) if theirs is not None else None
    )
    brought = _brought(submission.deepspeed, found)
    if document is None:
        return None
    try:
        settings = overrides.apply_overrides(document.values, submission.overrides)
    except overrides.OverrideError as error:
        found.append(finding("CFG010", str(error)))
        return None
    uses = _deepspeed_uses(settings, document, accelerate_file, brought, files, found)
    values = accelerate_file.values if accelerate_file is not None and purpose == "check" else {}
    machines, processes = whole(values.get("num_machines")), whole(values.get("num_processes"))
    nodes = submission.nodes if submission.nodes is not None else machines
    each = processes // machines if processes and machines and not values.get("use_cpu") else None
    return Subject(
        settings=settings,
        document=document,
        accelerate=accelerate_file,
        deepspeed=uses,
        files=files,
        facts=facts,
        data_roots=data_roots,
        nodes=nodes,
        gpus_per_node=submission.gpus_per_node if submission.gpus_per_node is not None else each,
        asked_nodes=submission.nodes,
        asked_gpus_per_node=submission.gpus_per_node,
        purpose=purpose,
        gpu=gpu,
    )


def _document(name: str, text: str, known: frozenset[str], found: list[Finding]) -> yaml.Document | None:
    read = syntax.read(name, text)
    if isinstance(read, Finding):
        found.append(read)
        return None
    found.extend(syntax.duplicates(read, text))
    found.extend(syntax.swallowed(read, known))
    return read


def _brought(given: SubmittedFile | None, found: list[Finding]) -> DeepSpeedUse | None:
    """The DeepSpeed file that came along."""
    if given is None:
        return None
    values = deepspeed_file.parse(given.text.encode("utf-8", "surrogatepass"), given.name)
    return DeepSpeedUse("brought", given.name, _kept(values, given.name, found), given.name, "")


def _deepspeed_uses(
    settings: dict[str, object],
    document: yaml.Document,
    accelerate_file: yaml.Document | None,
    brought: DeepSpeedUse | None,
    files: Files,
    found: list[Finding],
) -> tuple[DeepSpeedUse, ...]:
    """Every place that says what DeepSpeed does, the one that counts first; what is wrong goes to `found`.

    A file that came along takes the place of the one that the Axolotl config names.
    """
    uses = [] if brought is None else [brought]
    own = settings.get("deepspeed")
    if isinstance(own, dict):
        uses.append(DeepSpeedUse("axolotl", None, own, document.name, "deepspeed"))
    elif isinstance(own, str) and own and brought is None:
        line = document.line("deepspeed")
        values = deepspeed_file.read_file(files, own, file=document.name, key="deepspeed", line=line)
        uses.append(DeepSpeedUse("axolotl", own, _kept(values, own, found), document.name, "deepspeed"))
    if accelerate_file is not None and accelerate_file.values.get("distributed_type") == "DEEPSPEED":
        own_file = next(
            (use.path for use in uses if use.path and deepspeed_file.is_there(files, use.path)), None
        )
        uses.append(_accelerate_use(accelerate_file, files, own_file, found))
    return tuple(uses)


def _accelerate_use(
    document: yaml.Document, files: Files, own_file: str | None, found: list[Finding]
) -> DeepSpeedUse:
    """What the accelerate file says of DeepSpeed. `own_file`: the file that the Axolotl config names, if it is there."""
    section = mapping(document.values.get("deepspeed_config"))
    path = section.get("deepspeed_config_file")
    if isinstance(path, str) and path and path != "none":
        key = "deepspeed_config.deepspeed_config_file"
        line = document.line(*key.split("."))
        values = deepspeed_file.read_file(files, path, file=document.name, key=key, line=line, other=own_file)
        return DeepSpeedUse("accelerate", path, _kept(values, path, found), document.name, key)
    # accelerate's own keys, with its defaults (DeepSpeedPlugin)
    zero: dict[str, object] = {"stage": section.get("zero_stage", 2)}
    for what in ("optimizer", "param"):
        device = section.get(f"offload_{what}_device")
        if isinstance(device, str):
            zero[f"offload_{what}"] = {"device": device}
    return DeepSpeedUse("accelerate", None, {"zero_optimization": zero}, document.name, "deepspeed_config")


def _kept(values: object, name: str, found: list[Finding]) -> dict[str, object] | None:
    """`values` where they are a mapping; a finding, or another kind of JSON, goes to `found`."""
    if isinstance(values, Finding):
        found.append(values)
    elif isinstance(values, dict):
        return values
    elif values is not None:
        found.append(finding("CFG023", f"{shown(name)} holds no mapping", file=name))
    return None
