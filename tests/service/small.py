"""Disks that are soon full (they need root, as the tests with network namespaces do)."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def disk_of(folder: Path, size: str) -> Iterator[Path]:
    """A disk of its own at this path, of a size as `mount` reads it ("4m")."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
