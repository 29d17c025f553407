"""`--fix`: the corrected files, for every finding that has one right answer.

Rounds of check and mend, because mending a layout shows what else is wrong. A YAML file is edited in place by
ruamel.yaml, which keeps comments and order; what it writes is read back by the reader that Axolotl uses, and
an edit that did not come out as meant, or that makes an error where there was none, is left undone. Called by
the command line; pure but for `Files`.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator, Mapping, MutableMapping, MutableSequence, Sequence
from dataclasses import dataclass, field
from typing import cast

from pydantic import JsonValue
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.error import YAMLError
from ruamel.yaml.scalarstring import SingleQuotedScalarString
from ruamel.yaml.tokens import CommentToken

from coordinator.checks.check import check
from coordinator.checks.edits import Edit, edits_of
from coordinator.checks.files import Files
from coordinator.checks.subject import Purpose
from coordinator.core import yaml
from coordinator.core.protocol import Facts, Finding
from coordinator.core.views import CheckVerdict, Submission

# Each round shows at most what the one before has hidden: layout, indentation, keys, values.
MOST_ROUNDS = 8
_NO_SPACE = re.compile(r"^(\s*(?:- )?[A-Za-z_][\w-]*):(?=[^\s:/\\])", re.MULTILINE)
_TRAILING_COMMA = re.compile(r",(\s*[}\]])")
_TAB_BEFORE_COMMENT = re.compile(r"[ \t]*\t[ \t]*(?=#|$)")
_TAB_WIDTHS = (2, 4, 8)
# What makes a file readable.
_UNREAD = ("space", "tabs", "comma")
_TEXTUAL = (*_UNREAD, "line")


@dataclass(frozen=True)
class Fixed:
    """What came of it.

    Attributes:
        files: the corrected text of each file that was changed, by its name.
        mended: the findings that were mended, in the order they were.
        verdict: what the check says of the corrected files.
    """

    files: Mapping[str, str]
    mended: tuple[Finding, ...]
    verdict: CheckVerdict


def fix(
    submission: Submission, *, files: Files, facts: tuple[Facts, ...] = (), purpose: Purpose = "check"
) -> Fixed:
    """Mend what has one right answer, and check again."""

    def judge(state: _State) -> CheckVerdict:
        overlay = _Overlay(files, state.changed)
        return check(state.submission, files=overlay, facts=facts, purpose=purpose)

    state = _State(submission)
    first = judged = judge(state)
    for _ in range(MOST_ROUNDS):
        texts = _texts(state.submission, _Overlay(files, state.changed), judged.findings)
        before = state
        for together in _attempts(judged.findings):
            tried = state.mended_by(texts, together)
            if tried is state:
                continue
            heard = judge(tried)
            if not _worse(judged, heard, tried):
                state, judged = tried, heard
                break
        if state is before:
            break
    broken = any(not _reads(name, text) for name, text in state.changed.items())
    if broken or (first.verdict == "accept" and judged.verdict == "reject"):
        return Fixed({}, (), first)
    return Fixed(state.changed, state.mended, judged)


@dataclass(frozen=True)
class _State:
    """The submission as it is mended so far."""

    submission: Submission
    changed: Mapping[str, str] = field(default_factory=dict)
    mended: tuple[Finding, ...] = ()

    def mended_by(self, texts: Mapping[str, str], findings: Sequence[Finding]) -> _State:
        """With the edits of these findings made; itself where none of them changes anything.

        Args:
            texts: every file that a finding speaks of, as it stood when this round began.
        """
        changed = dict(self.changed)
        mended = list(self.mended)
        for found in findings:
            edits = edits_of(found)
            after = dict(changed)
            for edit in edits:
                name = edit.file or found.file or ""
                before = after.get(name, texts.get(name))
                done = None if before is None else _apply(name, before, edit)
                if done is None:
                    break
                after[name] = done
            else:
                if any(
                    text != changed.get(name, texts[name]) for name, text in after.items() if name in texts
                ):
                    changed = after
                    mended.append(found)
        if len(mended) == len(self.mended):
            return self
        return _State(_with(self.submission, changed), changed, tuple(mended))


def _attempts(findings: Sequence[Finding]) -> Iterator[Sequence[Finding]]:
    """What cannot be read first; then all at once, which is right nearly always; then one by one."""
    mendable = [found for found in findings if edits_of(found)]
    unread = [found for found in mendable if any(edit.operation in _UNREAD for edit in edits_of(found))]
    if unread:
        yield unread
    else:
        yield mendable
    if len(mendable) > 1:
        yield from ([found] for found in mendable)


def _worse(before: CheckVerdict, after: CheckVerdict, tried: _State) -> bool:
    """Whether the edits made an error: one that was not there, and has no right answer for the next round.

    A file that could not be read shows what is in it only once it can be: its errors are no news.
    """
    known = {(found.code, found.file, found.key) for found in before.findings}
    unread = {
        found.file for found in before.findings for edit in edits_of(found) if edit.operation in _UNREAD
    }
    hopeless = {found.file for found in after.findings if not edits_of(found)}
    if any(not _reads(name, text) and name in hopeless for name, text in tried.changed.items()):
        return True
    return not unread and any(
        found.severity == "error" and (found.code, found.file, found.key) not in known and not edits_of(found)
        for found in after.findings
    )


def _reads(name: str, text: str) -> bool:
    try:
        if name.endswith(".json"):
            json.loads(text)
        else:
            yaml.load(text, name)
    except (ValueError, RecursionError):
        return False
    return True


class _Overlay:
    """The user's files with the corrected ones laid over them."""

    def __init__(self, below: Files, changed: Mapping[str, str]) -> None:
        self._below = below
        self._changed = dict(changed)

    @property
    def final(self) -> bool:
        return self._below.final

    def exists(self, path: str) -> bool:
        return path in self._changed or self._below.exists(path)

    def read(self, path: str) -> bytes | None:
        text = self._changed.get(path)
        return text.encode() if text is not None else self._below.read(path)

    def siblings(self, path: str) -> tuple[str, ...]:
        return self._below.siblings(path)


def _texts(submission: Submission, files: Files, findings: Sequence[Finding]) -> dict[str, str]:
    """Every file that a finding speaks of, as it stands now."""
    texts = {submission.config_name: submission.config}
    for brought in (submission.accelerate, submission.deepspeed):
        if brought is not None:
            texts[brought.name] = brought.text
    for name in {one.file for one in findings if one.file is not None} - set(texts):
        data = files.read(name)
        if data is not None:
            texts[name] = data.decode("utf-8", "replace")
    return texts


def _with(submission: Submission, changed: Mapping[str, str]) -> Submission:
    update: dict[str, object] = {}
    if submission.config_name in changed:
        update["config"] = changed[submission.config_name]
    for which in ("accelerate", "deepspeed"):
        brought = getattr(submission, which)
        if brought is not None and brought.name in changed:
            update[which] = brought.model_copy(update={"text": changed[brought.name]})
    return submission.model_copy(update=update)


def _apply(name: str, text: str, edit: Edit) -> str | None:
    """The text after one edit, its lines ended as they were; None where it cannot be made."""
    crlf = text.count("\r\n") * 2 > text.count("\n")
    plain = text.replace("\r\n", "\n") if crlf else text
    if edit.operation in _TEXTUAL:
        done = _mend_text(plain, edit)
    else:
        done = _edit_json(plain, edit) if name.endswith(".json") else _edit_yaml(plain, edit)
    return done.replace("\n", "\r\n") if crlf and done is not None else done


def _mend_text(text: str, edit: Edit) -> str | None:
    if edit.operation == "space":
        return _NO_SPACE.sub(r"\1: ", text)
    if edit.operation == "tabs":
        return _untabbed(text)
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


def _edit_json(text: str, edit: Edit) -> str | None:
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


def _edit_yaml(text: str, edit: Edit) -> str | None:
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
        if edit.operation != "set" or not last.isdigit() or int(last) >= len(holder):
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
            if not part.isdigit() or int(part) >= len(holder):
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
