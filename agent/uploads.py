"""Sends files of a result up to the coordinator when somebody downloads them.

The desired state names the uploads that are wanted; each is begun once, from the offset that was asked for.
The path is resolved and must lie in the job's work folder, or under a data root of this replica, after all
links are followed. Called by `main.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import BinaryIO

import structlog

from agent.client import Coordinator, NotRegistered
from coordinator.core.http import ProblemAnswer, Unreachable
from coordinator.core.paths import Layout, PathRefused, contained
from coordinator.core.protocol import UploadRequest

log = structlog.get_logger("agent")

_PIECE_BYTES = 256 << 10
_AT_ONCE = 4  # more would only share the same link


class Uploads:
    """The uploads of this replica. One that broke is not repeated: the coordinator asks for another."""

    def __init__(self, layout: Layout, data_roots: Iterable[str], coordinator: Coordinator) -> None:
        self._layout = layout
        self._data_roots = tuple(Path(root) for root in data_roots)
        self._coordinator = coordinator
        self._begun: dict[str, asyncio.Task[None]] = {}
        self._turn = asyncio.Semaphore(_AT_ONCE)

    def want(self, requests: Iterable[UploadRequest]) -> None:
        """Begin what is new; what is no longer wanted is given up."""
        wanted = {request.upload_id: request for request in requests}
        for upload_id in [one for one in self._begun if one not in wanted]:
            self._begun.pop(upload_id).cancel()
        for upload_id, request in wanted.items():
            if upload_id not in self._begun:
                self._begun[upload_id] = asyncio.create_task(self._send(request))

    async def aclose(self) -> None:
        for task in self._begun.values():
            task.cancel()
        await asyncio.gather(*self._begun.values(), return_exceptions=True)

    def resolve(self, request: UploadRequest) -> Path:
        """The file that is meant.

        Raises:
            PathRefused: when it is not a regular file inside the folders this replica gives files from.
        """
        if request.path.startswith("/"):
            real = Path(request.path).resolve()
            if not any(real.is_relative_to(root.resolve()) for root in self._data_roots):
                raise PathRefused(f"{request.path} is not below RANKCALL_DATA_ROOTS")
        else:
            real = contained(self._layout.work(request.job_id), request.path)
        if not real.is_file():
            raise PathRefused(f"{request.path} is not there any more")
        return real

    async def _send(self, request: UploadRequest) -> None:
        async with self._turn:
            try:
                try:
                    path = self.resolve(request)
                    size = path.stat().st_size
                    if request.offset_bytes > size:
                        raise PathRefused(f"{request.path} has only {size} bytes")
                except (PathRefused, OSError) as error:
                    await self._coordinator.upload(request.upload_id, b"", error=str(error))
                else:
                    await self._coordinator.upload(request.upload_id, _pieces(path, request.offset_bytes))
            except (Unreachable, ProblemAnswer, NotRegistered, OSError) as error:
                log.info("an upload ended early", path=request.path, why=str(error))


def _opened(path: Path) -> BinaryIO:
    """The file that was resolved, or nothing: a link that has been put on its way since is not followed.

    Raises:
        OSError: where it cannot be opened, or is another one by now.
    """
    file = path.open("rb")
    if Path(f"/proc/self/fd/{file.fileno()}").readlink() != path:
        file.close()
        raise OSError(f"{path} has been moved")
    return file


async def _pieces(path: Path, offset: int) -> AsyncIterator[bytes]:
    """The file from `offset` on, read in a thread so that a slow disk does not hold up the agent."""
    with await asyncio.to_thread(_opened, path) as file:
        file.seek(offset)
        while piece := await asyncio.to_thread(file.read, _PIECE_BYTES):
            yield piece
