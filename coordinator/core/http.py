"""The one HTTP client: a thin adapter over httpx, so that nobody else depends on it.

Used by the agent (asynchronous) and the command line (synchronous). It adds what every caller needs and
httpx lacks: the bearer token, timeouts that are always set, one exception for a service that cannot be
reached and one for an answer that says no (RFC 9457 problem+json, with rankcall's code, hint and findings).
Proxies of the environment are not used: they are meant for the internet, not for a peer's address.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

import httpx
from pydantic import BaseModel

from coordinator.core import tls
from coordinator.core.http_answer import (
    Answer,
    BadAnswer,
    ProblemAnswer,
    Unreachable,
    answer_of,
    problem_of,
    translated,
)

__all__ = [
    "Answer",
    "AsyncClient",
    "BadAnswer",
    "Client",
    "ProblemAnswer",
    "ServerEvent",
    "Timeouts",
    "Unreachable",
]

Parameters = Mapping[str, str | int | float | bool | None]

_KEEP_ALIVE_S = 60.0  # below the service's own 75 s, so that no request goes out on a closing connection


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds for a connection to open, and for the next byte to arrive or leave."""

    connect_s: float = 5.0
    transfer_s: float = 30.0


@dataclass(frozen=True, slots=True)
class ServerEvent:
    """One event of a server-sent event stream."""

    id: str
    type: str
    data: str


class Client:
    """Synchronous client of one base URL. Close it, or use it in a `with`."""

    def __init__(self, base_url: str, *, token: str | None = None, timeouts: Timeouts | None = None) -> None:
        self.base_url = base_url.rstrip("/")
        self._timeouts = timeouts or Timeouts()
        self._httpx = httpx.Client(
            base_url=self.base_url,
            headers=_headers(token),
            timeout=_timeout(self._timeouts, None),
            limits=_LIMITS,
            verify=tls.verification(self.base_url),
            trust_env=False,
        )

    def request(
        self,
        method: str,
        path: str,
        *,
        message: BaseModel | None = None,
        content: bytes | None = None,
        parameters: Parameters | None = None,
        headers: Mapping[str, str] | None = None,
        transfer_s: float | None = None,
    ) -> Answer:
        """Send and read the whole answer.

        Raises:
            Unreachable: no connection, or it broke.
            ProblemAnswer: an error status.
        """
        body, sent = _json(message, headers)
        with translated(self.base_url):
            response = self._httpx.request(
                method,
                path,
                content=content if body is None else body,
                params=_parameters(parameters),
                headers=sent,
                timeout=_timeout(self._timeouts, transfer_s),
            )
        return answer_of(response, self.base_url)

    @contextmanager
    def stream(
        self,
        method: str,
        path: str,
        *,
        parameters: Parameters | None = None,
        headers: Mapping[str, str] | None = None,
        transfer_s: float | None = None,
    ) -> Iterator[tuple[Mapping[str, str], Iterator[bytes]]]:
        """The headers of the answer and its body in pieces, for downloads and followed logs."""
        with self._opened(
            method, path, parameters=parameters, headers=headers, transfer_s=transfer_s
        ) as response:
            yield response.headers, response.iter_bytes()

    @contextmanager
    def _opened(
        self,
        method: str,
        path: str,
        *,
        parameters: Parameters | None,
        headers: Mapping[str, str] | None,
        transfer_s: float | None,
    ) -> Iterator[httpx.Response]:
        """An answer with a good status, its body not yet read."""
        with (
            translated(self.base_url),
            self._httpx.stream(
                method,
                path,
                params=_parameters(parameters),
                headers=headers,
                timeout=_timeout(self._timeouts, transfer_s),
            ) as response,
        ):
            if response.is_error:
                raise problem_of(response, response.read(), self.base_url)
            yield response

    def events(
        self,
        path: str,
        *,
        parameters: Parameters | None = None,
        last_event_id: str | None = None,
        transfer_s: float = 60.0,
    ) -> Iterator[ServerEvent]:
        """Server-sent events, until the service ends the stream. Resume with the last id that was seen."""
        from httpx_sse import EventSource

        headers = {"Accept": "text/event-stream", "Cache-Control": "no-store"}
        if last_event_id:
            headers["Last-Event-ID"] = last_event_id
        with self._opened(
            "GET", path, parameters=parameters, headers=headers, transfer_s=transfer_s
        ) as response:
            for event in EventSource(response).iter_sse():
                yield ServerEvent(id=event.id, type=event.event, data=event.data)

    def close(self) -> None:
        self._httpx.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncClient:
    """Asynchronous client of one base URL. Close it with `aclose`."""

    def __init__(self, base_url: str, *, token: str | None = None, timeouts: Timeouts | None = None) -> None:
        self.base_url = base_url.rstrip("/")
        self._timeouts = timeouts or Timeouts()
        self._httpx = httpx.AsyncClient(
            base_url=self.base_url,
            headers=_headers(token),
            timeout=_timeout(self._timeouts, None),
            limits=_LIMITS,
            verify=tls.verification(self.base_url),
            trust_env=False,
        )

    def use_token(self, token: str | None) -> None:
        """Send this token from now on."""
        self._httpx.headers.pop("Authorization", None)
        self._httpx.headers.update(_headers(token))

    async def request(
        self,
        method: str,
        path: str,
        *,
        message: BaseModel | None = None,
        content: bytes | AsyncIterable[bytes] | None = None,
        parameters: Parameters | None = None,
        headers: Mapping[str, str] | None = None,
        transfer_s: float | None = None,
    ) -> Answer:
        """Send (a body may be a stream) and read the whole answer.

        Raises:
            Unreachable: no connection, or it broke.
            ProblemAnswer: an error status.
        """
        body, sent = _json(message, headers)
        with translated(self.base_url):
            response = await self._httpx.request(
                method,
                path,
                content=content if body is None else body,
                params=_parameters(parameters),
                headers=sent,
                timeout=_timeout(self._timeouts, transfer_s),
            )
        return answer_of(response, self.base_url)

    @asynccontextmanager
    async def stream(
        self,
        method: str,
        path: str,
        *,
        parameters: Parameters | None = None,
        headers: Mapping[str, str] | None = None,
        transfer_s: float | None = None,
    ) -> AsyncIterator[tuple[Mapping[str, str], AsyncIterator[bytes]]]:
        """The headers of the answer and its body in pieces."""
        with translated(self.base_url):
            async with self._httpx.stream(
                method,
                path,
                params=_parameters(parameters),
                headers=headers,
                timeout=_timeout(self._timeouts, transfer_s),
            ) as response:
                if response.is_error:
                    raise problem_of(response, await response.aread(), self.base_url)
                yield response.headers, response.aiter_bytes()

    async def aclose(self) -> None:
        await self._httpx.aclose()


_LIMITS = httpx.Limits(max_connections=16, max_keepalive_connections=8, keepalive_expiry=_KEEP_ALIVE_S)


def _headers(token: str | None) -> dict[str, str]:
    headers = {"User-Agent": "rankcall", "Accept": "application/json, application/problem+json"}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    return headers


def _timeout(timeouts: Timeouts, transfer_s: float | None) -> httpx.Timeout:
    transfer = timeouts.transfer_s if transfer_s is None else transfer_s
    return httpx.Timeout(transfer, connect=timeouts.connect_s, pool=timeouts.connect_s)


def _parameters(parameters: Parameters | None) -> dict[str, str | int | float | bool] | None:
    if parameters is None:
        return None
    return {name: value for name, value in parameters.items() if value is not None}


def _json(
    message: BaseModel | None, headers: Mapping[str, str] | None
) -> tuple[bytes | None, Mapping[str, str] | None]:
    """A message as the body to send, and the headers that go with it."""
    if message is None:
        return None, headers
    return message.model_dump_json().encode(), {"Content-Type": "application/json", **(headers or {})}
