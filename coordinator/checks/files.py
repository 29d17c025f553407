"""Where the files stand that a config names: in a submission's bundle, or in a folder on this machine.

Rules ask through the `Files` protocol and never touch a disk themselves; `FolderFiles` is the one shell.
"""

from __future__ import annotations

import difflib
import posixpath
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from coordinator.core.regular import read_regular
from coordinator.core.views import Submission

# A file that a config names is a few kilobytes; more is not read to judge it.
READ_LIMIT_BYTES = 8 << 20


class Files(Protocol):
    """The files beside a config. Paths are as the config writes them, relative to its folder.

    Attributes:
        final: nothing will be added: a relative path that is missing here is missing on every replica.
    """

    @property
    def final(self) -> bool: ...

    def exists(self, path: str) -> bool: ...

    def read(self, path: str) -> bytes | None: ...

    def siblings(self, path: str) -> tuple[str, ...]: ...


class BundleFiles:
    """The files that came with a submission: what is not among them will not be on the replicas."""

    final = True

    def __init__(self, submission: Submission) -> None:
        self._files = {_normal(file.path): file.data for file in submission.files}
        self._names: dict[str, set[str]] = {}
        for path in self._files:
            above = path
            while above:
                above, _, name = above.rpartition("/")
                self._names.setdefault(above, set()).add(name)

    def exists(self, path: str) -> bool:
        normal = _normal(path)
        return normal in self._files or normal in self._names

    def read(self, path: str) -> bytes | None:
        return self._files.get(_normal(path))

    def siblings(self, path: str) -> tuple[str, ...]:
        return tuple(sorted(self._names.get(posixpath.dirname(_normal(path)), ())))


class FolderFiles:
    """The files in the folder of a config on this machine; the replicas may have others."""

    final = False

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def exists(self, path: str) -> bool:
        try:
            return (self._folder / Path(path).expanduser()).exists()
        except (OSError, ValueError, RuntimeError):
            return False

    def read(self, path: str) -> bytes | None:
        try:
            return read_regular(self._folder / Path(path).expanduser(), READ_LIMIT_BYTES)[:READ_LIMIT_BYTES]
        except (OSError, ValueError, RuntimeError):
            return None

    def siblings(self, path: str) -> tuple[str, ...]:
        try:
            return tuple(sorted(entry.name for entry in (self._folder / path).parent.iterdir()))
        except (OSError, ValueError):
            return ()


def nearest(name: str, candidates: Iterable[str], *, cutoff: float = 0.75) -> str | None:
    """The candidate that `name` most likely stands for; None where none is near.

    Case, dashes and underscores count for nothing: `micro_batchsize` is `micro_batch_size`.
    """
    if not 0 < len(name) <= 100:
        return None
    plain = _plain(name)
    by_plain: dict[str, str] = {}
    for candidate in candidates:
        by_plain.setdefault(_plain(candidate), candidate)
    if plain in by_plain:
        return by_plain[plain]
    close = difflib.get_close_matches(plain, by_plain, n=1, cutoff=cutoff)
    return by_plain[close[0]] if close else None


def _plain(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")


def _normal(path: str) -> str:
    return posixpath.normpath(path).removeprefix("./") if path else path
