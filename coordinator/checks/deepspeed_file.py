"""The DeepSpeed JSON that a config names: is it there, and is it JSON? Called by `check.py` when it reads all files."""

from __future__ import annotations

import codecs
import json
import posixpath
import re

from coordinator.checks.edits import Edit, as_evidence, put
from coordinator.checks.files import Files, nearest
from coordinator.checks.subject import shown
from coordinator.core.catalogue import finding
from coordinator.core.protocol import Finding
from coordinator.render.presets import PRESET_FILES, PRESET_FOLDER, preset

_COMMA = "a comma before the closing bracket"


def read_file(
    files: Files, path: str, *, file: str, key: str, line: int | None, other: str | None = None
) -> object | Finding:
    """The JSON that `path` names, Axolotl's presets included, or the finding that says why there is none.

    Args:
        other: the file that another place names for the same purpose, and that is there.

    Returns:
        Whatever the JSON holds; CFG020 or CFG023 where there is none.
    """
    data = files.read(path)
    if data is None:
        known = preset(path)
        if known is not None:
            return known
        meant = other or _meant(files, path)
        if other is not None:
            hint = f"write {other}, which the Axolotl config names"
        else:
            hint = f"did you mean {meant}?" if meant else f"Axolotl's presets are {', '.join(PRESET_FILES)}"
        return finding(
            "CFG020",
            f"{shown(path)} does not exist",
            hint=hint,
            file=file,
            key=key,
            line=line,
            evidence=as_evidence((put(meant, *key.split(".")),)) if meant else {},
        )
    return parse(data, path)


def is_there(files: Files, path: str) -> bool:
    """A file, or a preset of Axolotl's, whatever it holds."""
    return files.exists(path) or preset(path) is not None


def parse(data: bytes, name: str) -> object | Finding:
    """The JSON in `data`; CFG023 where it is none, with the line."""
    if data.startswith(codecs.BOM_UTF8):
        return finding(
            "CFG023",
            f"{shown(name)} begins with a byte order mark, which Python's JSON reader refuses",
            hint="save it as UTF-8 without one (`sed -i '1s/^\\xEF\\xBB\\xBF//' FILE`)",
            file=name,
            evidence=as_evidence((Edit("mark"),)),
        )
    try:
        written = data.decode("utf-8")
        values: object = json.loads(written)
        return values
    except UnicodeDecodeError as error:
        return finding(
            "CFG023", f"{shown(name)} is not UTF-8: {error.reason} at byte {error.start}", file=name
        )
    except RecursionError:
        return finding("CFG023", f"{shown(name)} is nested too deeply", file=name)
    except json.JSONDecodeError as error:
        fault = _json_fault(written, error)
        return finding(
            "CFG023",
            f"{shown(name)} is not JSON: {fault} (line {error.lineno})",
            file=name,
            line=error.lineno,
            evidence=as_evidence((Edit("comma"),)) if fault == _COMMA else {},
        )
    except ValueError as error:  # an endless number
        return finding("CFG023", f"{shown(name)} is not JSON: {error}", file=name)


def _json_fault(written: str, error: json.JSONDecodeError) -> str:
    before = written[: error.pos].rstrip()
    if before.endswith(",") and written[error.pos : error.pos + 1] in "}]":
        return _COMMA
    if error.msg.startswith("Illegal trailing comma"):
        return _COMMA
    if re.match(r"\s*(//|#|/\*)", written[error.pos :]):
        return "JSON has no comments"
    if written[error.pos : error.pos + 1] == "'":
        return "text stands in double quotes"
    return error.msg


def _meant(files: Files, path: str) -> str | None:
    """The file that was probably meant: one beside it, or one of Axolotl's presets, of the same ZeRO stage."""
    folder, name = posixpath.split(posixpath.normpath(path))
    candidates = {one: posixpath.join(folder, one) for one in files.siblings(path) if one.endswith(".json")}
    for one in PRESET_FILES:
        candidates.setdefault(one, f"{PRESET_FOLDER}/{one}")
    stem = name if name.endswith(".json") else f"{name}.json"
    wanted = _stage_of(stem)
    same = [one for one in candidates if wanted is None or _stage_of(one) == wanted]
    near = nearest(stem, same, cutoff=0.6) or (min(same, key=len) if wanted and same else None)
    return candidates[near] if near else None


def _stage_of(name: str) -> str | None:
    """The ZeRO stage in a file's name: another stage is never what was meant."""
    found = re.search(r"(?:zero|stage)[-_]?(\d)", name.lower())
    return found[1] if found else None
