"""Edits that mend the text of a file itself: what keeps it from being read, and lines that say nothing new. Pure.

Called by `fix.py`.
"""

from __future__ import annotations

import re

from coordinator.checks.edits import Edit
from coordinator.core import yaml

_NO_SPACE = re.compile(r"^(\s*(?:- )?[A-Za-z_][\w-]*):(?=[^\s:/\\])", re.MULTILINE)
_TRAILING_COMMA = re.compile(r",(\s*[}\]])")
_TAB_BEFORE_COMMENT = re.compile(r"[ \t]*\t[ \t]*(?=#|$)")
_TAB_WIDTHS = (2, 4, 8)
# What makes a file readable.
UNREAD = ("space", "tabs", "comma", "mark")
TEXTUAL = (*UNREAD, "line")


def mend_text(text: str, edit: Edit) -> str | None:
    """The text after one edit; None where it cannot be made."""
    if edit.operation == "space":
        return _NO_SPACE.sub(r"\1: ", text)
    if edit.operation == "tabs":
        return _untabbed(text)
    if edit.operation == "mark":
        return text.removeprefix("\ufeff")
    if edit.operation == "comma":
        return _TRAILING_COMMA.sub(r"\1", text)
    lines = text.splitlines(keepends=True)
    number = edit.value
    if not isinstance(number, int) or not 0 < number <= len(lines):
        return None
    return "".join(lines[: number - 1] + lines[number:])


def _untabbed(text: str) -> str | None:
    """As wide as the tabs were meant: all widths that YAML can read must say the same.

    Where it can read none there is another fault, which the next round may mend.
    """
    meanings: list[tuple[str, dict[str, object]]] = []
    for width in _TAB_WIDTHS:
        lines = text.splitlines(keepends=True)
        spaced = "".join(_spaced(line, width) for line in lines)
        try:
            meanings.append((spaced, yaml.load(spaced)))
        except yaml.YamlError:
            continue
    if not meanings:
        return "".join(_spaced(line, _TAB_WIDTHS[0]) for line in text.splitlines(keepends=True))
    if any(values != meanings[0][1] for _, values in meanings):
        return None
    return meanings[0][0]


def _spaced(line: str, width: int) -> str:
    """Tabs as spaces where they indent, and where they stand before a comment."""
    body = line.lstrip(" \t")
    indent = line[: len(line) - len(body)].replace("\t", " " * width)
    return indent + _TAB_BEFORE_COMMENT.sub(lambda found: found[0].replace("\t", "  "), body)
