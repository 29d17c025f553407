"""`rankcall check`: the verdict on a configuration and the files it names, and corrected files where one is asked for."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

from coordinator.checks import FolderFiles, check, verdict
from coordinator.checks.gpus import NAMES, Gpu, UnknownGpu, gpu_of
from coordinator.cli.console import say, say_finding, write, write_json
from coordinator.cli.exits import Exit, Stop
from coordinator.cli.submission import Asked, burden, read
from coordinator.core.regular import write_new
from coordinator.core.views import CheckVerdict, Submission
from coordinator.core.words import counted


def check_files(asked: Asked, *, deep: bool, gpu: str | None, fix: bool, json: bool) -> None:
    """Prints the verdict; exit 1 where it rejects.

    Raises:
        Stop: 2 for a file that is not there, or a GPU that nobody knows.
    """
    meant = _gpu(gpu) if gpu is not None else None
    submission = None
    try:
        submission = read(asked)
        judged = _judge(asked, submission, deep=deep, gpu=meant)
    except Stop as stop:
        if not stop.findings:
            raise
        judged = CheckVerdict(verdict="reject", findings=stop.findings)
    if json:
        write_json(judged)
    else:
        for finding in judged.findings:
            say_finding(finding)
        write(f"{asked.config}: {judged.verdict}")
    if fix and submission is not None:
        _fix(asked, submission, meant)
    if judged.verdict == "reject":
        raise Stop(Exit.FAILED)


def _gpu(name: str) -> Gpu:
    try:
        return gpu_of(name)
    except UnknownGpu as unknown:
        near = f"Did you mean {unknown.near!r}? " if unknown.near else ""
        raise Stop(
            Exit.USAGE,
            f"--gpu {name!r}: no GPU is known by this name.",
            hint=f"{near}Known: {', '.join(NAMES)}; or write its compute capability, such as 8.6.",
        ) from None


def _judge(asked: Asked, submission: Submission, *, deep: bool, gpu: Gpu | None) -> CheckVerdict:
    files = FolderFiles(asked.config.parent)
    if deep:
        from coordinator.checks.axolotl_process import AxolotlSchema
        from coordinator.checks.deep import deep_check

        with contextlib.closing(AxolotlSchema()) as schema:
            said = deep_check(submission, schema, files=files, gpu=gpu)
    else:
        said = check(submission, files=files, gpu=gpu)
    return verdict((*said.findings, *burden(asked, submission, "check")), submission.allow)


def _fix(asked: Asked, submission: Submission, gpu: Gpu | None) -> None:
    """Writes what has one right answer beside the originals, which stay as they are."""
    from coordinator.checks.fix import fix

    fixed = fix(submission, files=FolderFiles(asked.config.parent), gpu=gpu)
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
    say(
        f"Mended: {codes}. "
        + (f"{counted(len(left), 'error')} left for you." if left else "No error is left.")
    )


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
