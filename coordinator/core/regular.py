"""Files of the user's own: read no further than asked for, and never written over.

Only regular ones are read: a device has no end, a FIFO blocks until somebody writes into it, and a folder is
none. Called by the command line and by the checks, for a path that comes from outside.
"""

from __future__ import annotations

import errno
import os
import stat
import zlib
from pathlib import Path

_PIECE_BYTES = 1 << 20


class NotRegular(OSError):
    """A path that names a folder, device, FIFO or socket; `strerror` says which, for a sentence."""


def read_regular(path: Path, limit_bytes: int) -> bytes:
    """The file's bytes, one more than `limit_bytes` at most: whoever gets more than the limit knows that it is too large.

    Raises:
        NotRegular: for what is no regular file; nothing of it is opened or waited for.
        OSError, ValueError: as `open`.
    """
    _refuse_others(path, path.stat().st_mode)
    # Without waiting, in case it has just become a FIFO.
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        _refuse_others(path, os.fstat(handle).st_mode)
        pieces: list[bytes] = []
        left = limit_bytes + 1
        while left > 0 and (piece := os.read(handle, min(left, _PIECE_BYTES))):
            pieces.append(piece)
            left -= len(piece)
        return b"".join(pieces)
    finally:
        os.close(handle)


def write_new(path: Path, data: bytes) -> None:
    """Make a file, whole or not at all, where nothing is: what has that name, a link included, stays as it is.

    Raises:
        FileExistsError: when the name is taken.
        OSError: as `open`.
    """
    temporary = path.with_name(f".{os.getpid()}.{zlib.crc32(os.fsencode(path.name)):08x}")
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(temporary, path, follow_symlinks=False)
        except FileExistsError:
            raise
        except (
            OSError
        ):  # a disk without links: nobody else's file is at risk, only that this one is cut short
            with path.open("xb") as file:
                file.write(data)
    finally:
        temporary.unlink(missing_ok=True)


def _refuse_others(path: Path, mode: int) -> None:
    if stat.S_ISREG(mode):
        return
    kinds = {
        stat.S_IFDIR: "it is a folder",
        stat.S_IFIFO: "it is a pipe; write it to a file first",
        stat.S_IFSOCK: "it is a socket",
    }
    raise NotRegular(errno.EINVAL, kinds.get(stat.S_IFMT(mode), "it is a device"), str(path))
