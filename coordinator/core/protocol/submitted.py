"""What a user sends along with a config."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from pydantic import ConfigDict, Field

from coordinator.core.protocol.message import Message


class BundleFile(Message):
    """A file that travels with a submission; `path` is relative to the config's folder."""

    model_config = ConfigDict(extra="forbid")

    path: str = Field(min_length=1, max_length=1024)
    data: bytes


class Bundle(Message):
    files: tuple[BundleFile, ...] = ()


def bundle_sha256(files: Iterable[BundleFile]) -> str:
    """The identity of a bundle: a hash over paths and contents, whatever their order. Both sides know it by that."""
    total = hashlib.sha256()
    for file in sorted(files, key=lambda file: file.path):
        name = file.path.encode("utf-8", "surrogatepass")
        total.update(len(name).to_bytes(8, "big") + name + hashlib.sha256(file.data).digest())
    return total.hexdigest()
