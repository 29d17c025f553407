"""YAML itself: what cannot be read, and what is read as something else than was meant.

Every file is read by `core/yaml.py`, as Axolotl and accelerate read it; here its complaints become findings
that say what to do.
"""

from __future__ import annotations

import re

from coordinator.checks.edits import Edit, as_evidence
from coordinator.checks.subject import Findings, shown
from coordinator.core import yaml
from coordinator.core.catalogue import finding
from coordinator.core.protocol import Finding

# `key:value`, which YAML takes for plain text; `http://…` and `C:\…` are no keys.
_NO_SPACE = re.compile(r"^\s*(?:- )?([A-Za-z_][\w-]*):(?=[^\s:/\\])")
# Two `key: value` on one line: line breaks were lost on the way.
_ONE_LINE = re.compile(r"^\s*[A-Za-z_][\w-]*:\s+[^\s'\"{\[#|>&*!][^'\"#]*?\s[A-Za-z_][\w-]*:\s")
_KINDS = (
    ("unprintable character", "CFG007"),
    ("the file is empty", "CFG005"),
    ("a second document", "CFG009"),
    ("a list, where", "CFG005"),
    ("plain text, where", "CFG005"),
    ("a tab is used", "CFG003"),
    ("more than", "CFG006"),
    ("nested deeper", "CFG006"),
    ("a number of", "CFG006"),
    ("the key is read as", "CFG008"),
)
_UTF16 = (b"\xff\xfe", b"\xfe\xff")


def decode(name: str, data: bytes) -> str | Finding:
    """The text of a file; CFG007 where its bytes are not UTF-8. A byte order mark is dropped."""
    if data.startswith(_UTF16):
        return finding("CFG007", f"{name} is UTF-16", hint="save it as UTF-8", file=name)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        byte = data[error.start]
        return finding(
            "CFG007", f"{name} is not UTF-8: byte 0x{byte:02x} on line {line}", file=name, line=line
        )


def read(name: str, text: str) -> yaml.Document | Finding:
    """The document in `text`, or the one finding that says why there is none."""
    try:
        return yaml.read(text.removeprefix("\ufeff"), name)
    except yaml.YamlError as error:
        return _fault(name, text, error)


def _fault(name: str, text: str, error: yaml.YamlError) -> Finding:
    code = next((code for start, code in _KINDS if error.problem.startswith(start)), "CFG001")
    if code in ("CFG001", "CFG005"):
        lost = _lost_layout(name, text)
        if lost is not None:
            return lost
    if code == "CFG001" and "\t" in error.text[: max(0, error.column)]:
        code = "CFG003"
    evidence = as_evidence((Edit("tabs"),)) if code == "CFG003" else {}
    if error.line:
        evidence |= {"column": error.column, "text": error.text[:200]}
    return finding(
        code, f"{_place(error)}: {error.problem}", file=name, line=error.line or None, evidence=evidence
    )


def _place(error: yaml.YamlError) -> str:
    return f"line {error.line}, column {error.column}" if error.line else error.name


def _lost_layout(name: str, text: str) -> Finding | None:
    """CFG002 where a line shows how the file lost its layout, as text pasted from a page does."""
    for number, line in enumerate(text.splitlines()[:2000], 1):
        match = _NO_SPACE.match(line[:500])
        if match is not None:
            return finding(
                "CFG002",
                f"line {number}: no space after the colon of `{shown(match[1])}:`",
                file=name,
                key=match[1],
                line=number,
                hint=f"write `{match[1]}: …` with a space; below a section, indent by two",
                evidence=as_evidence((Edit("space"),)),
            )
        if _ONE_LINE.match(line[:500]):
            return finding(
                "CFG002",
                f"line {number}: several keys on one line: the line breaks are lost",
                file=name,
                line=number,
            )
    return None


def duplicates(document: yaml.Document, text: str) -> Findings:
    """CFG004: a key written twice; the last one wins without a word."""
    lines = text.splitlines()
    for twice in document.duplicates[:20]:
        first, last = _line(lines, twice.first_line), _line(lines, twice.line)
        path = ".".join(twice.path)
        same = bool(first) and first == last and not first.endswith(":")
        yield finding(
            "CFG004",
            f"`{shown(path)}` is written on line {twice.first_line} and again on line {twice.line}"
            + (", alike" if same else ": the last one wins"),
            file=document.name,
            key=path,
            line=twice.line,
            severity="warning" if same else "error",
            evidence=as_evidence((Edit("line", value=twice.line),)) if same else {},
        )


def swallowed(document: yaml.Document, known: frozenset[str]) -> Findings:
    """CFG002: a value that has swallowed the lines below it, because one lacks the space after its colon."""
    for key, value in document.values.items():
        if not isinstance(value, str) or ":" not in value or "\n" in value or len(value) > 1000:
            continue
        for word in re.findall(r"(?:^|\s)([A-Za-z_]\w*):(?=\S)", value):
            if word in known:
                yield finding(
                    "CFG002",
                    f"the value of `{shown(key)}` reads `{shown(value)}`: `{word}` below it has no space after its colon",
                    file=document.name,
                    key=key,
                    line=document.line(key),
                )
                break


def _line(lines: list[str], number: int) -> str:
    return lines[number - 1].split(" #")[0].strip() if 0 < number <= len(lines) else ""
