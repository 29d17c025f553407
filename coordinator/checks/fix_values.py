"""Edits to the keys and values of a YAML or JSON file, in place. Pure; called by `fix.py`.

A YAML file is edited by ruamel.yaml, which keeps comments and order; what it writes is read back by the reader that
Axolotl uses, and an edit that did not come out as meant is left undone.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import MutableMapping, MutableSequence, Sequence
from typing import cast

from pydantic import JsonValue
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.error import YAMLError
from ruamel.yaml.scalarstring import SingleQuotedScalarString
from ruamel.yaml.tokens import CommentToken

from coordinator.checks.edits import Edit
from coordinator.core import yaml


def edit_json(text: str, edit: Edit) -> str | None:
    """The text of a JSON file after one edit, indented as it was; None where the edit cannot be made."""
    try:
        values = json.loads(text)
    except ValueError:
        return None
    if not isinstance(values, dict) or not _change(values, edit):
        return None
    if "\n" not in text.strip():
        return json.dumps(values, ensure_ascii=False) + "\n"
    indent = re.search(r"^( +)\S", text, re.MULTILINE)
    return json.dumps(values, indent=len(indent[1]) if indent else 2, ensure_ascii=False) + "\n"


def edit_yaml(text: str, edit: Edit) -> str | None:
    """The text of a YAML file after one edit; None where it cannot be made, or would not come out as meant."""
    editor = YAML()
    editor.preserve_quotes = True
    editor.width = 1 << 16
    if re.search(r"^( *)[^\s#-][^\n]*:\s*(?:#[^\n]*)?\n(?:\s*#[^\n]*\n)*\1 +- ", text, re.MULTILINE):
        editor.indent(mapping=2, sequence=4, offset=2)
    try:
        expected = yaml.load(text)
        document = editor.load(text)
        if (
            not isinstance(document, CommentedMap)
            or not _change(document, edit)
            or not _change(expected, edit)
        ):
            return None
        out = io.StringIO()
        editor.dump(document, out)
        return out.getvalue() if yaml.load(out.getvalue()) == expected else None
    except (YAMLError, yaml.YamlError, ValueError):
        return None


Container = MutableMapping[str, object] | MutableSequence[object]


def _change(root: MutableMapping[str, object], edit: Edit) -> bool:
    """Make the edit in the values; False where it cannot be made, or changes nothing."""
    if not edit.path:
        return False
    *above, last = edit.path
    holder = _holder(root, above, make=edit.operation == "set")
    if holder is None:
        return False
    if isinstance(holder, MutableSequence):
        if edit.operation != "set" or not last.isdecimal() or int(last) >= len(holder):
            return False
        holder[int(last)] = _quoted(edit.value, root)
        return True
    if edit.operation == "set":
        holder[last] = _quoted(edit.value, root)
        return True
    if edit.operation == "append":
        return _append(holder, last, edit.value)
    if last not in holder:
        return False
    if edit.operation == "remove":
        _keep_comment(holder, last)
        del holder[last]
        return True
    if edit.operation == "rename":
        return _rename(holder, last, str(edit.value))
    return _indent(root, last, str(edit.value))


def _holder(root: MutableMapping[str, object], above: Sequence[str], *, make: bool) -> Container | None:
    holder: Container = root
    for part in above:
        if isinstance(holder, MutableSequence):
            if not part.isdecimal() or int(part) >= len(holder):
                return None
            inner = holder[int(part)]
        else:
            inner = holder.get(part)
            if inner is None and make:
                inner = holder[part] = CommentedMap() if isinstance(root, CommentedMap) else {}
        if not isinstance(inner, MutableMapping | MutableSequence):
            return None
        holder = cast(Container, inner)
    return holder


def _append(holder: MutableMapping[str, object], key: str, value: JsonValue) -> bool:
    present = holder.get(key)
    if present is None:
        holder[key] = CommentedSeq([value]) if isinstance(holder, CommentedMap) else [value]
        return True
    if not isinstance(present, MutableSequence):
        return False
    present.append(value)
    return True


def _rename(holder: MutableMapping[str, object], old: str, new: str) -> bool:
    """In its place, with its comment; not where the new name is taken."""
    if new in holder:
        return False
    place = list(holder).index(old)
    if isinstance(holder, CommentedMap):
        comment = holder.ca.items.pop(old, None)
        holder.insert(place, new, holder.pop(old))
        if comment is not None:
            holder.ca.items[new] = comment
        return True
    renamed = {new if key == old else key: value for key, value in holder.items()}
    holder.clear()
    holder.update(renamed)
    return True


def _indent(root: MutableMapping[str, object], key: str, section: str) -> bool:
    if root.get(section) is None:
        root[section] = CommentedMap() if isinstance(root, CommentedMap) else {}
    inner = root[section]
    if not isinstance(inner, MutableMapping) or key in inner:
        return False
    comment = root.ca.items.pop(key, None) if isinstance(root, CommentedMap) else None
    inner[key] = root.pop(key)
    if comment is not None and isinstance(inner, CommentedMap):
        inner.ca.items[key] = comment
    return True


def _keep_comment(holder: MutableMapping[str, object], key: str) -> None:
    """ruamel hangs the lines of comment below a key on that key: they stay, on the key before it."""
    if not isinstance(holder, CommentedMap):
        return
    comment = holder.ca.items.get(key)
    token = comment[2] if comment else None
    if token is None:
        return
    below = token.value.partition("\n")[2]
    keys = list(holder)
    place = keys.index(key)
    if not below.strip() or place == 0:
        return
    before = holder.ca.items.setdefault(keys[place - 1], [None, None, None, None])
    if before[2] is None:
        before[2] = CommentToken("\n" + below, token.start_mark, None)
    else:
        before[2].value = before[2].value.rstrip("\n") + "\n" + below


def _quoted(value: JsonValue, root: object) -> object:
    """Text that YAML 1.1 would read as something else is written in quotes; ruamel knows YAML 1.2 only."""
    if not isinstance(root, CommentedMap) or not isinstance(value, str):
        return value
    try:
        plain = yaml.load(f"value: {value}\n")["value"] == value
    except yaml.YamlError:
        plain = False
    return value if plain else SingleQuotedScalarString(value)
