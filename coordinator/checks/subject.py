"""What the rules look at: a submission, read once, with where each of its keys stands.

`check.py` builds one `Subject`; every rule is a function from it to findings and nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from coordinator.checks.edits import Edit, as_evidence
from coordinator.checks.files import Files
from coordinator.checks.gpus import Gpu
from coordinator.core.catalogue import finding
from coordinator.core.protocol import Facts, Finding, Severity
from coordinator.core.yaml import Document

Purpose = Literal["check", "submit"]
Findings = Iterator[Finding]

_WHOLE = re.compile(r"^\s*[+-]?\d{1,18}\s*$", re.ASCII)
_OFF = frozenset({"0", "off", "f", "false", "n", "no"})

# Longer values are cut in messages; a value may be megabytes.
SHOWN_CHARACTERS = 60


@dataclass(frozen=True)
class DeepSpeedUse:
    """One place that says what DeepSpeed does.

    Attributes:
        by: whose key it is: Axolotl's `deepspeed`, accelerate's, or a file given with `--deepspeed`.
        path: the file as written there; None where the settings stand in line.
        values: the settings; None where the file is missing or no JSON (a finding of its own).
        file, key: where it is said, for findings.
    """

    by: Literal["axolotl", "accelerate", "brought"]
    path: str | None
    values: Mapping[str, object] | None
    file: str
    key: str

    @property
    def zero(self) -> Mapping[str, object]:
        return mapping((self.values or {}).get("zero_optimization"))

    @property
    def stage(self) -> int | None:
        """The ZeRO stage; None where it is not known. DeepSpeed's own default is 0."""
        if self.values is None:
            return None
        stage = self.zero.get("stage", 0)
        return whole(stage) if isinstance(stage, int | float) else None

    def offload(self, what: Literal["optimizer", "param"]) -> str:
        device = mapping(self.zero.get(f"offload_{what}")).get("device", "none")
        return str(device) if device is not None else "none"


@dataclass(frozen=True)
class Subject:
    """A submission as the rules see it.

    Attributes:
        settings: the Axolotl config with the overrides laid over it.
        document: the Axolotl config as written, for positions.
        accelerate: the accelerate file that came along, if any.
        deepspeed: every place that says what DeepSpeed does, the one that counts first: a file that came
            along, Axolotl's own key, accelerate's.
        nodes, gpus_per_node: the topology asked for, else what the accelerate file says, else None.
        asked_nodes, asked_gpus_per_node: only what the submission itself asks for.
        data_roots: folders that the replicas allow absolute paths in; empty where it is not known.
        purpose: `check` judges an accelerate file as if launched as it stands, `submit` replaces its topology.
        gpu: what the job is for, where the user says it and no facts do.
    """

    settings: Mapping[str, object]
    document: Document
    accelerate: Document | None
    deepspeed: tuple[DeepSpeedUse, ...]
    files: Files
    facts: tuple[Facts, ...]
    data_roots: tuple[str, ...]
    nodes: int | None
    gpus_per_node: int | None
    asked_nodes: int | None
    asked_gpus_per_node: int | None
    purpose: Purpose
    gpu: Gpu | None = None

    def get(self, key: str) -> object:
        """A setting of the Axolotl config; None where it is absent, as Axolotl itself reads it."""
        return self.settings.get(key)

    def has(self, *keys: str) -> bool:
        """All of these are set to something that counts as true."""
        return all(bool(self.settings.get(key)) for key in keys)

    def on(self, key: str) -> bool:
        """Switched on, once Axolotl's schema has read it: the text `no` is off there."""
        value = self.settings.get(key)
        return bool(value) and not (isinstance(value, str) and value.lower() in _OFF)

    @property
    def complete(self) -> bool:
        """What is not among the files will not be on the replicas either."""
        return self.files.final and self.purpose == "submit"

    @property
    def world(self) -> int | None:
        """Processes in all, where nodes and GPUs per node are known (on the CPU: one each)."""
        if self.nodes is None or self.gpus_per_node is None:
            return None
        return self.nodes * max(1, self.gpus_per_node)

    @property
    def effective_deepspeed(self) -> DeepSpeedUse | None:
        """The one that takes effect."""
        return self.deepspeed[0] if self.deepspeed else None

    def found(
        self,
        code: str,
        message: str,
        *path: str,
        hint: str | None = None,
        severity: Severity | None = None,
        edits: Sequence[Edit] = (),
    ) -> Finding:
        """A finding about a key of the Axolotl config, or about the whole of it; `edits` where one answer is right."""
        return _found(self.document, code, message, path, hint, severity, edits)

    def found_in_accelerate(
        self,
        code: str,
        message: str,
        *path: str,
        hint: str | None = None,
        severity: Severity | None = None,
        edits: Sequence[Edit] = (),
    ) -> Finding:
        """A finding about a key of the accelerate file."""
        assert self.accelerate is not None
        return _found(self.accelerate, code, message, path, hint, severity, edits)

    def found_in_deepspeed(
        self,
        use: DeepSpeedUse,
        code: str,
        message: str,
        *path: str,
        hint: str | None = None,
        severity: Severity | None = None,
        edits: Sequence[Edit] = (),
    ) -> Finding:
        """A finding about a DeepSpeed setting: in its file, or where it stands in line."""
        if use.path is not None:
            return finding(
                code,
                message,
                hint=hint,
                severity=severity,
                file=use.path,
                key=".".join(path) or None,
                evidence=as_evidence(edits),
            )
        document = self.accelerate if use.by == "accelerate" and self.accelerate else self.document
        above = tuple(use.key.split("."))
        moved = [Edit(edit.operation, (*above, *edit.path), edit.value, edit.file) for edit in edits]
        return _found(document, code, message, (*above, *path), hint, severity, moved)


def _found(
    document: Document,
    code: str,
    message: str,
    path: tuple[str, ...],
    hint: str | None,
    severity: Severity | None,
    edits: Sequence[Edit],
) -> Finding:
    return finding(
        code,
        message,
        hint=hint,
        severity=severity,
        file=document.name,
        key=".".join(path) or None,
        line=document.line(*path) if path else None,
        evidence=as_evidence(edits),
    )


def mapping(value: object) -> Mapping[str, object]:
    """`value` where it is a mapping, else an empty one."""
    return value if isinstance(value, Mapping) else {}


def items(value: object) -> Sequence[object]:
    """`value` where it is a list, else an empty one."""
    return value if isinstance(value, list) else ()


def text(value: object) -> str:
    """`value` where it is text, else ''."""
    return value if isinstance(value, str) else ""


def whole(value: object) -> int | None:
    """The whole number that accelerate, Axolotl or DeepSpeed would make of it; None where none."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str) and _WHOLE.match(value):
        return int(value)
    return None


def number(value: object) -> float | None:
    """The number it stands for, `1e-4` read as text included; None where it is none."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float | str):
        try:
            return float(value)
        except (ValueError, OverflowError):
            return None
    return None


def shown(value: object) -> str:
    """A value for a message: short whatever it holds."""
    if isinstance(value, str):
        written = value
    elif isinstance(value, bool):
        written = str(value).lower()
    elif value is None:
        written = "null"
    elif isinstance(value, Mapping):
        written = f"a mapping of {len(value)}"
    elif isinstance(value, list):
        written = f"a list of {len(value)}"
    else:
        try:
            written = str(value)
        except ValueError:  # more digits than Python will print
            written = "a huge number"
    return written if len(written) <= SHOWN_CHARACTERS else written[: SHOWN_CHARACTERS - 1] + "…"
