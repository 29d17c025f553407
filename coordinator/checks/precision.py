"""bf16, fp16, fp8 and tf32: said once, and possible on the GPUs at hand.

Axolotl sets accelerate's precision from its own config (`axolotl/utils/trainer.py`), so its word counts;
`bf16: auto` is its default and falls back to fp16.
"""

from __future__ import annotations

from coordinator.checks.edits import drop, put
from coordinator.checks.subject import Findings, Subject, shown, text

AMPERE = (8, 0)
ADA = (8, 9)
HOPPER = (9, 0)


def two_kinds(subject: Subject) -> Findings:
    """CFG401: bf16 and fp16 at once."""
    if subject.get("bf16") is True and subject.get("fp16") is True:
        yield subject.found(
            "CFG401",
            "`bf16` and `fp16` are both true: Axolotl takes bf16",
            "fp16",
            edits=(put(False, "fp16"),),
        )
    for key, other in (("float16", "bfloat16"), ("float16", "float32"), ("bfloat16", "float32")):
        if subject.get(key) is True and subject.get(other) is True:
            yield subject.found("CFG401", f"`{key}` and `{other}` are both true", other)


def accelerate_differs(subject: Subject) -> Findings:
    """CFG402: another precision in the accelerate file."""
    if subject.accelerate is None:
        return
    theirs = text(subject.accelerate.values.get("mixed_precision")).lower()
    own = _own(subject)
    if theirs in ("bf16", "fp16", "fp8") and own is not None and theirs != own:
        yield subject.found_in_accelerate(
            "CFG402",
            f"`mixed_precision: {theirs}` here, {own} in the Axolotl config, which wins",
            "mixed_precision",
            edits=(drop("mixed_precision"),),
        )


def _own(subject: Subject) -> str | None:
    """The precision that the Axolotl config fixes; None where the GPUs decide."""
    if subject.has("fp8"):
        return "fp8"
    if subject.settings.get("bf16", "auto") is True:
        return "bf16"
    if subject.get("fp16") is True:
        return "fp16"
    return None if subject.settings.get("bf16", "auto") == "auto" else "no"


def possible(subject: Subject) -> Findings:
    """CFG403, CFG404, CFG405: what the GPUs of the replicas, or those that the user names, cannot do."""
    for name, capability in _capabilities(subject):
        shape = f"{name} (sm_{capability[0]}{capability[1]})"
        for key in ("bf16", "bfloat16"):
            if subject.get(key) is True and capability < AMPERE:
                yield subject.found(
                    "CFG403",
                    f"`{key}: true`, but {shape} has no bf16",
                    key,
                    hint="write `bf16: false`, `fp16: true`",
                    edits=(put(False, key), put(True, "fp16")),
                )
        if subject.has("fp8") and capability < ADA:
            instead = "write `bf16: false`, `fp16: true` in its place" if capability < AMPERE else None
            yield subject.found("CFG404", f"`fp8: true`, but {shape} has no fp8", "fp8", hint=instead)
        if subject.get("attn_implementation") == "fp8" and capability < HOPPER:
            yield subject.found(
                "CFG404", f"fp8 attention needs sm_90, and {shape} is older", "attn_implementation"
            )
        if subject.get("tf32") is True and capability < AMPERE:
            yield subject.found("CFG405", f"`tf32: true` does nothing on {shape}", "tf32")
        flash = (
            subject.has("flash_attention") or text(subject.get("attn_implementation")) == "flash_attention_2"
        )
        if flash and capability < AMPERE:
            key = "flash_attention" if subject.has("flash_attention") else "attn_implementation"
            yield subject.found(
                "CFG406", f"flash attention 2 needs sm_80, and {shape} is older", key,
                hint="write `attn_implementation: sdpa`",
            )  # fmt: skip


def _capabilities(subject: Subject) -> list[tuple[str, tuple[int, int]]]:
    """Each kind of GPU among the replicas once, with its compute capability; else the kind that the user names."""
    kinds: dict[str, tuple[int, int]] = {}
    for facts in subject.facts:
        for gpu in facts.gpus:
            major, dot, minor = (gpu.compute_capability or "").partition(".")
            if dot and major.isdigit() and minor.isdigit():
                kinds[gpu.name] = (int(major), int(minor))
    if not subject.facts and subject.gpu is not None:
        return [(shown(subject.gpu.name), subject.gpu.capability)]
    return sorted(kinds.items())


def on_the_cpu(subject: Subject) -> Findings:
    """CFG408: what has no meaning without a GPU."""
    if subject.gpus_per_node != 0:
        return
    for key in ("load_in_4bit", "load_in_8bit", "fp8"):
        if subject.has(key):
            yield subject.found("CFG408", f"`{key}: {shown(subject.get(key))}` needs a GPU", key)


RULES = (two_kinds, accelerate_differs, possible, on_the_cpu)
