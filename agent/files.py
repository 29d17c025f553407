"""Puts the job's files on this replica's disk: the rendered ones of an attempt, and the submission's bundle.

Nothing is written that does not have the hash it should have, nor outside the folder it belongs to. The bundle
is fetched once per job and kept over its attempts. Called by `run_task.py` before a process starts.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

from pydantic import ValidationError

from coordinator.core.paths import AttemptFolder, Layout, PathRefused, contained, write_whole
from coordinator.core.protocol import AttemptPlan, Bundle, RenderedFile, bundle_sha256
from coordinator.core.redact import secrets_of, secrets_within
from coordinator.core.yaml import YamlError, load

_CONFIGURATION = (".json", ".yaml", ".yml")

Fetch = Callable[[Callable[[bytes], object]], Awaitable[None]]


class NotPlaced(Exception):
    """A file could not be put where it belongs; the text is one sentence for a user."""


def place_rendered(files: Iterable[RenderedFile], attempt: AttemptFolder) -> None:
    """Write an attempt's rendered files, unless they are there already.

    Raises:
        NotPlaced: for a wrong hash, a path that leads out of the folder, or a disk that refuses.
    """
    for file in files:
        content = file.content.encode()
        if hashlib.sha256(content).hexdigest() != file.sha256:
            raise NotPlaced(f"{file.path} arrived with another hash than {file.sha256[:12]}…")
        try:
            path = contained(attempt.root, file.path)
            if not path.is_file() or path.read_bytes() != content:
                write_whole(path, content)
        except PathRefused as error:
            raise NotPlaced(f"rendered file: {error}") from None
        except OSError as error:
            raise NotPlaced(
                f"{file.path} cannot be written to {attempt.root}: {error.strerror or error}"
            ) from None


async def place_bundle(plan: AttemptPlan, layout: Layout, fetch: Fetch) -> None:
    """Unpack the job's bundle into its work folder, unless that was done before.

    Args:
        fetch: calls back with the pieces of the bundle's JSON; what it raises passes through.

    Raises:
        NotPlaced: for a wrong hash, a path that leads out of the folder, or a disk that refuses.
    """
    work, mark = layout.work(plan.job_id), layout.bundle_mark(plan.job_id)
    try:
        work.mkdir(parents=True, exist_ok=True)
        if plan.bundle_sha256 is None or _read(mark) == plan.bundle_sha256:
            return
        with tempfile.TemporaryFile(dir=work.parent) as spool:
            await fetch(spool.write)
            spool.flush()
            await asyncio.to_thread(_unpack, spool.fileno(), work, plan.bundle_sha256)
        write_whole(mark, plan.bundle_sha256.encode())
    except OSError as error:
        raise NotPlaced(f"the bundle cannot be written to {work}: {error.strerror or error}") from None


def _unpack(spool: int, work: Path, expected: str) -> None:
    try:
        bundle = Bundle.model_validate_json(os.pread(spool, os.fstat(spool).st_size, 0))
    except ValidationError as error:
        raise NotPlaced(f"the bundle arrived damaged: {error.error_count()} fields are wrong") from None
    if bundle_sha256(bundle.files) != expected:
        raise NotPlaced(f"the bundle arrived with another hash than {expected[:12]}…")
    for file in bundle.files:
        try:
            write_whole(contained(work, file.path), file.data)
        except PathRefused as error:
            raise NotPlaced(f"bundle: {error}") from None


def secrets_of_attempt(attempt: AttemptFolder) -> tuple[str, ...]:
    """What the files and the environments of an attempt hold that is secret, as they lie on this disk."""
    found: list[str] = []
    for path in sorted(attempt.root.glob("*.*")):
        with contextlib.suppress(ValueError):
            found += secrets_in_file(path.name, _read(path))
    for spec in sorted(attempt.tasks.glob("*/spec.json")):
        with contextlib.suppress(ValueError, AttributeError, KeyError, TypeError):
            found += secrets_of(json.loads(_read(spec))["environment"])
    return tuple(found)


def secrets_in_file(name: str, content: str) -> tuple[str, ...]:
    """The strings that a rendered configuration holds under names of secrets."""
    if not name.endswith(_CONFIGURATION):
        return ()
    try:
        return secrets_within(load(content, name))
    except YamlError:
        return ()


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
