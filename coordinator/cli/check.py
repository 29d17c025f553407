"""`rankcall check`: the verdict on a configuration and the files it names, and corrected files where one is asked for."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

from coordinator.checks import FolderFiles, check
from coordinator.cli.console import say, say_finding, write, write_json
from coordinator.cli.exits import Exit, Stop
from coordinator.cli.submission import Asked, read
from coordinator.core.regular import write_new
from coordinator.core.views import CheckVerdict, Submission


def check_files(asked: Asked, *, deep: bool, gpu: str | None, fix: bool, json: bool) -> None:
    """Prints the verdict; exit 1 where it rejects.

    Raises:
        Stop: 2 for a file that is not there.
    """
    submission = None
    try:
        submission = read(asked)
        verdict = _judge(asked, submission, deep=deep, gpu=gpu)
    except Stop as stop:
        if not stop.findings:
            raise
        verdict = CheckVerdict(verdict="reject", findings=stop.findings)
    if json:
        write_json(verdict)
    else:
        for finding in verdict.findings:
            say_finding(finding)
        write(f"{asked.config}: {verdict.verdict}")
    if fix and submission is not None:
        _fix(asked, submission)
    if verdict.verdict == "reject":
        raise Stop(Exit.FAILED)


def _judge(asked: Asked, submission: Submission, *, deep: bool, gpu: str | None) -> CheckVerdict:
    files = FolderFiles(asked.config.parent)
    if not deep:
        return check(submission, files=files)
    from coordinator.checks.deep import AxolotlSchema, deep_check

    with contextlib.closing(AxolotlSchema()) as schema:
        return deep_check(submission, schema, files=files, gpu=gpu)


def _fix(asked: Asked, submission: Submission) -> None:
    """Writes what has one right answer beside the originals, which stay as they are."""
    from coordinator.checks.fix import fix

    fixed = fix(submission, files=FolderFiles(asked.config.parent))
    if not fixed.files:
        say("Nothing here has one right answer: no file was written.")
        return
    targets = _beside(asked, fixed.files)
    for target in targets:
        if os.path.lexists(target):
            raise Stop(
                Exit.FAILED,
                f"{target} is there already and is not written over: nothing was written.",
                hint="Move it away or delete it, then repeat the command.",
            )
    for target, text in targets.items():
        try:
            write_new(target, text.encode("utf-8", "surrogateescape"))
        except FileExistsError:
            raise Stop(Exit.FAILED, f"{target} was made meanwhile and is not written over.") from None
        except OSError as error:
            raise Stop(Exit.FAILED, f"{target} cannot be written: {error.strerror}.") from None
        say(f"{target} is written.", "bold")
    codes = ", ".join(dict.fromkeys(finding.code for finding in fixed.mended))
    left = [finding for finding in fixed.verdict.findings if finding.severity == "error"]
    say(f"Mended: {codes}. " + (f"{len(left)} errors are left for you." if left else "No error is left."))


def _beside(asked: Asked, texts: Mapping[str, str]) -> dict[Path, str]:
    """Where each corrected file goes: `NAME.fixed.SUFFIX` beside the one it corrects."""
    brought = {
        path.name: path for path in (asked.deepspeed, asked.accelerate, asked.config) if path is not None
    }
    found = {}
    for name, text in texts.items():
        original = brought.get(name, asked.config.parent / name)
        found[original.with_name(f"{original.stem}.fixed{original.suffix}")] = text
    return found
