"""Downloads the files of a job's result: resumed where it broke off, checked by SHA-256, never half there.

A file is written as `NAME.part` and takes its name once its hash is right.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from coordinator.cli.exits import Exit, Stop
from coordinator.cli.remote import Remote, failures_as_stops
from coordinator.core.http import ProblemAnswer, Unreachable
from coordinator.core.paths import PathRefused, contained
from coordinator.core.views import ArtifactView

if TYPE_CHECKING:
    from rich.progress import TaskID

_BLOCK_BYTES = 1 << 20
# A coordinator that restarts is back in seconds; a replica that is gone stays gone.
_TRIES_WITHOUT_PROGRESS = 6
_PAUSE_S = 1.0


Advance = Callable[[int], None]


def target(folder: Path, artifact: ArtifactView, strip: str) -> Path:
    """Where a file of the result goes; a path that would leave the folder is refused."""
    try:
        return contained(folder, artifact.path.removeprefix(strip))
    except PathRefused as error:
        raise Stop(Exit.FAILED, f"The coordinator names a file that cannot be: {error}.") from None


def common_folder(artifacts: tuple[ArtifactView, ...]) -> str:
    """The folder all of them lie in, with its slash (`outputs/lora-out/`): the result's own name is left out."""
    folders = {artifact.path.rpartition("/")[0] for artifact in artifacts}
    if not folders:
        return ""
    parts = [folder.split("/") if folder else [] for folder in folders]
    shared: list[str] = []
    for names in zip(*parts, strict=False):
        if len(set(names)) > 1:
            break
        shared.append(names[0])
    return "/".join(shared) + "/" if shared else ""


def fetch(
    remote: Remote,
    job_id: str,
    artifact: ArtifactView,
    path: Path,
    advance: Advance,
    sleep: Callable[[float], None] = time.sleep,
) -> bool:
    """Brings one file to `path`; False when it is there already, whole.

    Raises:
        Stop: when it cannot be had, or is not what was promised.
    """
    if path.is_file() and path.stat().st_size == artifact.size_bytes and sha256(path) == artifact.sha256:
        advance(artifact.size_bytes)
        return False
    part = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _fill(remote, job_id, artifact, part, advance, sleep)
        if sha256(part) != artifact.sha256:
            # What was there before may have been of another result: once more from the start.
            part.unlink()
            _fill(remote, job_id, artifact, part, advance, sleep)
        if (got := sha256(part)) != artifact.sha256:
            part.unlink()
            raise Stop(
                Exit.FAILED,
                f"{artifact.path} arrived damaged: its SHA-256 is {got}, not {artifact.sha256}.",
                hint="Try again; if it stays so, the file on the replica has changed since it was collected.",
            )
        part.replace(path)
    except OSError as error:
        raise Stop(
            Exit.FAILED, f"{error.filename or path} cannot be written: {error.strerror or error}."
        ) from None
    return True


def _fill(
    remote: Remote,
    job_id: str,
    artifact: ArtifactView,
    part: Path,
    advance: Advance,
    sleep: Callable[[float], None],
) -> None:
    failures = 0
    while True:
        have = part.stat().st_size if part.exists() else 0
        if have > artifact.size_bytes:
            part.unlink()
            have = 0
        if have == artifact.size_bytes and part.exists():
            return
        try:
            _more(remote, job_id, artifact, part, have, advance)
        except (Unreachable, ProblemAnswer) as error:
            final = isinstance(error, ProblemAnswer) and error.status < 500
            grown = part.exists() and part.stat().st_size > have
            failures = 0 if grown else failures + 1
            if final or failures >= _TRIES_WITHOUT_PROGRESS:
                with failures_as_stops(f"file {artifact.id} of job {job_id}"):
                    raise
            sleep(_PAUSE_S * failures)
        else:
            if artifact.size_bytes == 0:
                part.touch()
            elif part.stat().st_size == have:
                raise Stop(Exit.FAILED, f"{artifact.path} ends after {have} of {artifact.size_bytes} bytes.")


def _more(
    remote: Remote, job_id: str, artifact: ArtifactView, part: Path, have: int, advance: Advance
) -> None:
    with remote.artifact(job_id, artifact.id, have) as (headers, blocks):
        # Without a Content-Range the whole file is coming, whatever was asked for.
        resumed = have > 0 and headers.get("content-range", "").startswith(f"bytes {have}-")
        with part.open("ab" if resumed else "wb") as file:
            size = have if resumed else 0
            for block in blocks:
                file.write(block)
                size += len(block)
                advance(size)


def sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def download_all(remote: Remote, job_id: str, artifacts: tuple[ArtifactView, ...], folder: Path) -> None:
    """Brings every file under `folder`, with one progress bar for a terminal.

    Raises:
        Stop: for the first that cannot be had; what came so far stays, and is not fetched again.
    """
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    from coordinator.cli.console import talk
    from coordinator.core.words import plain

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Stop(Exit.USAGE, f"{folder} cannot be made: {error.strerror}.") from None
    strip = common_folder(artifacts)
    with Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        console=talk(),
        transient=True,
        disable=not talk().is_terminal,
    ) as bars:
        for artifact in artifacts:
            bar = bars.add_task(plain(artifact.path), total=artifact.size_bytes)

            def advance(size_bytes: int, bar: TaskID = bar) -> None:
                bars.update(bar, completed=size_bytes)

            fetch(remote, job_id, artifact, target(folder, artifact, strip), advance)
