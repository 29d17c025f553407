"""The one HTTP client: a thin adapter over httpx, so that nobody else depends on it.

Used by the agent (asynchronous) and the command line (synchronous). It adds what every caller needs and
httpx lacks: the bearer token, timeouts that are always set, one exception for a service that cannot be
reached and one for an answer that says no (RFC 9457 problem+json, with rankcall's code, hint and findings).
Proxies of the environment are not used: they are meant for the internet, not for a peer's address.
"""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import AsyncIterable, AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TypeVar

import httpcore
import httpx
from pydantic import BaseModel, ValidationError

from coordinator.core import tls
from coordinator.core.protocol import Finding
from coordinator.core.views import Problem

ModelT = TypeVar("ModelT", bound=BaseModel)
Parameters = Mapping[str, str | int | float | bool | None]

_PROBLEM_LIMIT_BYTES = 4 << 20  # an error page longer than that is not ours and is cut
# Without a problem of ours these come from another service; other statuses may be those of a proxy in front.
_NOT_OURS = frozenset({400, 404, 405, 501})
_KEEP_ALIVE_S = 60.0  # below the service's own 75 s, so that no request goes out on a closing connection


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds for a connection to open, and for the next byte to arrive or leave."""

    connect_s: float = 5.0
    transfer_s: float = 30.0


class Unreachable(Exception):
    """The service cannot be reached, or the connection broke before the answer was whole.

    Attributes:
        hint: what to do about it, where the reason tells.
    """

    def __init__(self, url: str, reason: str, hint: str = "") -> None:
        super().__init__(f"{url} cannot be reached: {reason}")
        self.url = url
        self.reason = reason
        self.hint = hint


class ProblemAnswer(Exception):
    """The service answered with an error status.

    Attributes:
        url: the base URL of who answered.
        status: the HTTP status; `code`, `hint`, `findings` as in `views.Problem`.
        retry_after_s: what the service asked for, if it did.
    """

    def __init__(self, problem: Problem, *, retry_after_s: float | None = None, url: str = "") -> None:
        super().__init__(problem.detail or problem.title)
        self.url = url
        self.problem = problem
        self.retry_after_s = retry_after_s

    @property
    def status(self) -> int:
        return self.problem.status

    @property
    def code(self) -> str | None:
        return self.problem.code

    @property
    def hint(self) -> str | None:
        return self.problem.hint

    @property
    def findings(self) -> tuple[Finding, ...]:
        return self.problem.findings


class BadAnswer(Unreachable):
    """Something answered, but not rankcall: a captive proxy, another service on that port."""

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(url, reason, "Another service has that port: RANKCALL_URL says where to look.")
        self.args = (f"what answers at {url} is not rankcall ({reason})",)


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer with a good status (2xx or 304)."""

    url: str
    status: int
    headers: Mapping[str, str]
    body: bytes

    def parse(self, model: type[ModelT]) -> ModelT:
        """The body as a message.

        Raises:
            BadAnswer: when it is not one.
        """
        try:
            return model.model_validate_json(self.body)
        except ValidationError as error:
            raise BadAnswer(self.url, f"the answer is not a {model.__name__} of rankcall") from error


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
        with _translated(self.base_url):
            response = self._httpx.request(
                method,
                path,
                content=content if body is None else body,
                params=_parameters(parameters),
                headers=sent,
                timeout=_timeout(self._timeouts, transfer_s),
            )
        return _answer(response, self.base_url)

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
        with (
            _translated(self.base_url),
            self._httpx.stream(
                method,
                path,
                params=_parameters(parameters),
                headers=headers,
                timeout=_timeout(self._timeouts, transfer_s),
            ) as response,
        ):
            if response.is_error:
                raise _problem(response, response.read(), self.base_url)
            yield response.headers, response.iter_bytes()

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
        with (
            _translated(self.base_url),
            self._httpx.stream(
                "GET",
                path,
                params=_parameters(parameters),
                headers=headers,
                timeout=_timeout(self._timeouts, transfer_s),
            ) as response,
        ):
            if response.is_error:
                raise _problem(response, response.read(), self.base_url)
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
        with _translated(self.base_url):
            response = await self._httpx.request(
                method,
                path,
                content=content if body is None else body,
                params=_parameters(parameters),
                headers=sent,
                timeout=_timeout(self._timeouts, transfer_s),
            )
        return _answer(response, self.base_url)

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
        with _translated(self.base_url):
            async with self._httpx.stream(
                method,
                path,
                params=_parameters(parameters),
                headers=headers,
                timeout=_timeout(self._timeouts, transfer_s),
            ) as response:
                if response.is_error:
                    raise _problem(response, await response.aread(), self.base_url)
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


@contextmanager
def _translated(base_url: str) -> Iterator[None]:
    """httpx's exceptions as ours."""
    try:
        yield
    except httpx.TimeoutException as error:
        raise Unreachable(base_url, "no answer in time") from error
    except (httpx.TransportError, httpx.InvalidURL) as error:
        raise Unreachable(base_url, *_reason(error, base_url)) from error


def _reason(error: Exception, base_url: str) -> tuple[str, str]:
    """The innermost cause in plain words, and a hint: httpx wraps httpcore wraps the operating system."""
    inner: BaseException = error
    while (cause := inner.__cause__ or inner.__context__) is not None:
        inner = cause
    if isinstance(inner, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({inner.verify_message})", tls.HOW_TO_TRUST
    if isinstance(inner, ssl.SSLError):
        return (
            f"TLS fails ({inner.reason or inner})",
            "Where it serves no TLS, write http:// in RANKCALL_URL.",
        )
    if isinstance(inner, socket.gaierror):
        return f"the name cannot be resolved ({inner.strerror})", ""
    perhaps_tls = (
        "Where it serves TLS, write https:// in RANKCALL_URL." if base_url.startswith("http:") else ""
    )
    if isinstance(inner, httpx.RemoteProtocolError | httpcore.RemoteProtocolError):
        return "it closed the connection without a whole answer", perhaps_tls
    if isinstance(inner, ConnectionResetError):
        return "it broke the connection off", perhaps_tls
    if isinstance(inner, OSError) and inner.errno:
        return os.strerror(inner.errno).lower(), ""
    return (str(error) or type(error).__name__).rstrip("."), ""


def _answer(response: httpx.Response, base_url: str) -> Answer:
    if response.is_error:
        raise _problem(response, response.content, base_url)
    if response.has_redirect_location:
        raise BadAnswer(str(response.url), f"it answers with a redirect to {response.headers['location']}")
    return Answer(str(response.url), response.status_code, response.headers, response.content)


def _problem(response: httpx.Response, body: bytes, origin: str) -> ProblemAnswer | BadAnswer:
    retry_after = response.headers.get("retry-after", "")
    retry_after_s = float(retry_after) if retry_after.isdigit() else None
    if "json" in response.headers.get("content-type", ""):
        try:
            return ProblemAnswer(
                Problem.model_validate_json(body[:_PROBLEM_LIMIT_BYTES]),
                retry_after_s=retry_after_s,
                url=origin,
            )
        except ValidationError:
            pass
    title = response.reason_phrase or f"HTTP {response.status_code}"
    if response.status_code in _NOT_OURS:
        return BadAnswer(origin, f"it says {response.status_code} {title} to {response.url.path}")
    plain = Problem(title=title, status=response.status_code, detail=f"{response.url.path}: {title}")
    return ProblemAnswer(plain, retry_after_s=retry_after_s, url=origin)
