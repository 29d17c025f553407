"""Passes a result from the replica that holds it to whoever downloads it, never keeping it.

A download asks the replica for an upload (`protocol.UploadRequest` in its desired state); the agent
answers with `PUT …/uploads/{upload_id}`, and the two requests are joined by a queue of a few chunks, so a
slow reader slows the replica and memory stays bounded. An upload that breaks is asked for again from the
byte reached, so a restarted agent or a lost connection does not cost the download.

Called by `api/artifacts.py` (download) and `api/replicas.py` (upload).
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass, field
from typing import Final, Protocol

import structlog

from coordinator.core.problem import ProblemError, problem
from coordinator.core.protocol import UploadRequest

log = structlog.get_logger(__name__)

# Chunks come from the server's reader, at most 64 KiB each; four keep both sides busy.
MOST_CHUNKS = 4
# A client whose download was broken off because the file has changed asks again, and is told for so long.
CHANGED_S = 60.0
# Uploads in a row that brought no byte before the download gives up.
MOST_EMPTY_UPLOADS = 3


@dataclass(frozen=True, slots=True)
class RelayTimes:
    """Judgements, in seconds.

    Attributes:
        first_byte_s: a replica sees the request within its held read and opens the file: well below a second when healthy.
        stall_s: silence in mid-transfer after which the upload is asked for again.
    """

    first_byte_s: float = 20.0
    stall_s: float = 60.0


class Uploads(Protocol):
    """What of `roster.Roster` is needed here."""

    def alive(self, replica_id: str, /) -> bool: ...

    def request_upload(self, replica_id: str, request: UploadRequest, /) -> bool: ...

    def end_upload(self, upload_id: str, /) -> None: ...


@dataclass(frozen=True, slots=True)
class Source:
    """A file on a replica, as the store knows it."""

    artifact_id: str
    job_id: str
    replica_id: str
    path: str
    size_bytes: int
    sha256: str


class _Broken(Exception):
    """The upload ended before the file did."""


_END: Final = b""


@dataclass(slots=True)
class _Upload:
    """One upload on its way, between the request that brings it and the one that takes it."""

    request: UploadRequest
    replica_id: str
    chunks: asyncio.Queue[bytes | Exception] = field(default_factory=lambda: asyncio.Queue(MOST_CHUNKS))
    attached: bool = False
    closed: bool = False

    def close(self) -> None:
        """The reader is gone or has enough: lets a waiting writer go on, which then sees `closed`."""
        self.closed = True
        while not self.chunks.empty():
            self.chunks.get_nowait()


class Relay:
    """The uploads that somebody waits for. One per coordinator process."""

    def __init__(self, replicas: Uploads, times: RelayTimes | None = None) -> None:
        self.times = times or RelayTimes()
        self._replicas = replicas
        self._uploads: dict[str, _Upload] = {}
        self._changed: dict[str, float] = {}  # artifact id: until when it is refused unread

    async def open(self, source: Source, start: int, stop: int) -> AsyncGenerator[bytes, None]:
        """Bytes `start` to `stop` (exclusive) of a file, once the first of them is here.

        Raises:
            ProblemError: 503 when the replica is not here, 504 when it does not begin in time, 410 when the file has changed.
        """
        if self._changed.pop(source.artifact_id, 0.0) > asyncio.get_running_loop().time():
            raise _other(source)
        chunks = self._read(source, start, stop)
        try:
            first = await anext(chunks)
        except StopAsyncIteration:
            return _chain(b"", chunks)
        except BaseException:
            await chunks.aclose()
            raise
        return _chain(first, chunks)

    async def receive(
        self, replica_id: str, upload_id: str, body: AsyncIterator[bytes], error: str = ""
    ) -> None:
        """Takes an agent's upload and hands it on, as fast as the reader reads.

        Args:
            error: why the agent cannot send the file, in its own words; then the body is empty.

        Raises:
            ProblemError: 410 when nobody waits for it (any more).
        """
        upload = self._uploads.get(upload_id)
        if upload is None or upload.replica_id != replica_id or upload.attached or upload.closed:
            raise _gone()
        upload.attached = True
        if error:
            await upload.chunks.put(problem(503, "SYS114", f"The replica could not send the file: {error}"))
            return
        try:
            async for chunk in body:
                if chunk:
                    await upload.chunks.put(chunk)
                if upload.closed:
                    raise _gone()
        except ProblemError:
            raise
        except Exception:  # whatever cut the upload off, the reader must not wait for its rest
            if not upload.closed:
                await upload.chunks.put(_Broken())
            raise
        await upload.chunks.put(_END)

    @property
    def waiting(self) -> int:
        return len(self._uploads)

    async def _read(self, source: Source, start: int, stop: int) -> AsyncGenerator[bytes, None]:
        """Yields the bytes, over as many uploads as it takes; checks the hash where it sees the whole file."""
        whole = hashlib.sha256() if start == 0 and stop == source.size_bytes else None
        position, empty = start, 0
        held = b""
        while position < stop:
            before = position
            if not self._replicas.alive(source.replica_id):
                raise problem(
                    503, "SYS114", f"Replica {source.replica_id}, which holds {source.path}, is not here."
                )
            upload = self._ask(source, position)
            try:
                async for chunk in self._chunks_of(upload):
                    part = chunk[: stop - position]
                    position += len(part)
                    if whole is not None:
                        whole.update(part)
                    if held:
                        yield held
                    held = part
                    if position >= stop:
                        break
            except (_Broken, TimeoutError) as reason:
                log.warning(
                    "upload broke", replica=source.replica_id, path=source.path, at=position, why=repr(reason)
                )
            finally:
                upload.close()
                del self._uploads[upload.request.upload_id]
                self._replicas.end_upload(upload.request.upload_id)
            empty = empty + 1 if position == before else 0
            if empty >= MOST_EMPTY_UPLOADS:
                raise problem(
                    504,
                    "SYS114",
                    f"Replica {source.replica_id} did not send {source.path} within {self.times.first_byte_s:.0f} s.",
                )
        if whole is not None and whole.hexdigest() != source.sha256:
            # The last piece is withheld: the client sees a broken download, never a wrong file.
            log.error("file changed since it was collected", replica=source.replica_id, path=source.path)
            self._changed[source.artifact_id] = asyncio.get_running_loop().time() + CHANGED_S
            raise _other(source)
        if held:
            yield held

    def _ask(self, source: Source, offset: int) -> _Upload:
        request = UploadRequest(
            upload_id=secrets.token_hex(16),
            artifact_id=source.artifact_id,
            job_id=source.job_id,
            path=source.path,
            offset_bytes=offset,
        )
        upload = self._uploads[request.upload_id] = _Upload(request, source.replica_id)
        self._replicas.request_upload(source.replica_id, request)
        return upload

    async def _chunks_of(self, upload: _Upload) -> AsyncIterator[bytes]:
        limit_s = self.times.first_byte_s
        while True:
            async with asyncio.timeout(limit_s):
                chunk = await upload.chunks.get()
            if isinstance(chunk, Exception):
                raise chunk
            if chunk == _END:
                return
            limit_s = self.times.stall_s
            yield chunk


async def _chain(first: bytes, rest: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    try:
        if first:
            yield first
        async for chunk in rest:
            yield chunk
    finally:
        await rest.aclose()


def _other(source: Source) -> ProblemError:
    return problem(410, "SYS122", f"{source.path} is no longer the file that was collected.")


def _gone() -> ProblemError:
    return problem(410, "SYS116", "Nobody waits for this upload.")
