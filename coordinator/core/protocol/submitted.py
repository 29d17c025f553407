"""What a user sends along with a config."""

from __future__ import annotations

from pydantic import ConfigDict, Field

from coordinator.core.protocol.message import Message


class BundleFile(Message):
    """A file that travels with a submission; `path` is relative to the config's folder."""

    model_config = ConfigDict(extra="forbid")

    path: str = Field(min_length=1, max_length=1024)
    data: bytes


class Bundle(Message):
    files: tuple[BundleFile, ...] = ()
