"""`--fix`: the corrected files, for every finding that has one right answer.

Rounds of check and mend, because mending a layout shows what else is wrong. An edit that makes an error where there
was none is left undone. Called by the command line; pure but for `Files`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from coordinator.checks.check import check
from coordinator.checks.edits import Edit, edits_of
from coordinator.checks.files import Files
from coordinator.checks.fix_text import TEXTUAL, UNREAD, mend_text
from coordinator.checks.fix_values import edit_json, edit_yaml
from coordinator.checks.gpus import Gpu
from coordinator.checks.subject import Purpose
from coordinator.core import yaml
from coordinator.core.protocol import Facts, Finding
from coordinator.core.views import CheckVerdict, Submission

# Each round shows at most what the one before has hidden: layout, indentation, keys, values.
MOST_ROUNDS = 8


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
    submission: Submission,
    *,
    files: Files,
    facts: tuple[Facts, ...] = (),
    purpose: Purpose = "check",
    gpu: Gpu | None = None,
) -> Fixed:
    """Mend what has one right answer, and check again."""

    def judge(state: _State) -> CheckVerdict:
        overlay = _Overlay(files, state.changed)
        return check(state.submission, files=overlay, facts=facts, purpose=purpose, gpu=gpu)

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
    unread = [found for found in mendable if any(edit.operation in UNREAD for edit in edits_of(found))]
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
    unread = {found.file for found in before.findings for edit in edits_of(found) if edit.operation in UNREAD}
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
    if edit.operation in TEXTUAL:
        done = mend_text(plain, edit)
    else:
        done = edit_json(plain, edit) if name.endswith(".json") else edit_yaml(plain, edit)
    return done.replace("\n", "\r\n") if crlf and done is not None else done
