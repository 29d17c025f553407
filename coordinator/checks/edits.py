"""What to write instead, as data: a finding with one right answer carries its edits in `evidence["edits"]`.

Rules make them, `fix.py` applies them to the user's text, and a reader of the JSON can too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import JsonValue

from coordinator.core.protocol import Finding

Operation = Literal["set", "remove", "rename", "indent", "append", "space", "tabs", "comma", "mark", "line"]


@dataclass(frozen=True)
class Edit:
    """One change to one file.

    Attributes:
        operation: `set` a key to `value`, `remove` it, `rename` it to `value`, `indent` it under the section
            `value`, `append` `value` to a list; or mend the text itself: a `space` after each colon that lacks it,
            `tabs` into spaces; a `comma` before a closing bracket, a byte order `mark`, or the `line` number `value`,
            which says nothing new, taken out.
        path: the key, from the top.
        file: another file than the finding's.
    """

    operation: Operation
    path: tuple[str, ...] = ()
    value: JsonValue = None
    file: str | None = None

    def as_json(self) -> JsonValue:
        made: dict[str, JsonValue] = {"operation": self.operation, "path": list(self.path)}
        if self.operation not in ("remove", "space", "tabs", "comma", "mark"):
            made["value"] = self.value
        if self.file is not None:
            made["file"] = self.file
        return made


def put(value: JsonValue, *path: str, file: str | None = None) -> Edit:
    return Edit("set", path, value, file)


def drop(*path: str) -> Edit:
    return Edit("remove", path)


def rename(name: str, *path: str) -> Edit:
    return Edit("rename", path, name)


def as_evidence(edits: Sequence[Edit]) -> dict[str, JsonValue]:
    return {"edits": [edit.as_json() for edit in edits]} if edits else {}


def edits_of(found: Finding) -> tuple[Edit, ...]:
    """The edits that a finding carries; none where it has no single right answer."""
    written = found.evidence.get("edits")
    edits = []
    for one in written if isinstance(written, list) else ():
        if not isinstance(one, dict) or not isinstance(one.get("path"), list):
            continue
        file = one.get("file")
        edits.append(
            Edit(
                one["operation"],  # type: ignore[arg-type]
                tuple(str(part) for part in one["path"]),  # type: ignore[union-attr]
                one.get("value"),
                file if isinstance(file, str) else None,
            )
        )
    return tuple(edits)
