"""`text/event-stream`: how an event is written, how far a reader is, and a response that always ends its source.

Starlette's own streaming response leaves its generator to the garbage collector when the client leaves;
here it is closed at once, and with it the subscription or the transfer behind it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import NamedTuple

from pydantic import BaseModel
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

# A comment now and then keeps proxies from closing a quiet stream; most close after 60 s.
KEEP_ALIVE_S = 15.0
KEEP_ALIVE = b": keep-alive\n\n"
# A browser comes back after a second when the connection broke.
GREETING = b"retry: 1000\n\n"

_LARGEST_ID = 1 << 62


class Cursor(NamedTuple):
    """How far a reader of a job's events is: the ids of the last finding and the last metric it has."""

    finding: int = 0
    metric: int = 0

    def __str__(self) -> str:
        return f"{self.finding}.{self.metric}"

    def covers(self, other: Cursor) -> bool:
        """Whether a reader that is here has had everything up to `other`."""
        return other.finding <= self.finding and other.metric <= self.metric

    @classmethod
    def parse(cls, text: str) -> Cursor:
        """What `str` wrote. Raises ValueError for anything else."""
        finding, metric = text.split(".")
        return cls(min(int(finding), _LARGEST_ID), min(int(metric), _LARGEST_ID))


def encode(event: str, data: BaseModel, cursor: Cursor | None = None) -> bytes:
    """One event. JSON holds no raw line break, so its data is one line."""
    head = f"event: {event}\ndata: " if cursor is None else f"id: {cursor}\nevent: {event}\ndata: "
    return head.encode() + data.model_dump_json(exclude_none=True).encode() + b"\n\n"


class Streamed(StreamingResponse):
    """A streaming response over a generator, which is closed when the response ends, however it ends."""

    def __init__(
        self,
        source: AsyncGenerator[bytes, None],
        status_code: int = 200,
        headers: Mapping[str, str] | None = None,
        media_type: str | None = None,
    ) -> None:
        super().__init__(source, status_code, headers, media_type)
        self._source = source

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._source.aclose()


def event_stream(source: AsyncGenerator[bytes, None]) -> Streamed:
    """An event stream that no proxy on the way should buffer or keep."""
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return Streamed(source, 200, headers, "text/event-stream")
