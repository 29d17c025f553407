"""What comes back from a service: an answer, a refusal with its reason, or nothing and why. Used by `http.py`."""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import httpcore
import httpx
from pydantic import BaseModel, ValidationError

from coordinator.core import tls
from coordinator.core.protocol import Finding
from coordinator.core.views import Problem

ModelT = TypeVar("ModelT", bound=BaseModel)

_PROBLEM_LIMIT_BYTES = 4 << 20  # an error page longer than that is not ours and is cut
# Without a problem of ours these come from another service; other statuses may be those of a proxy in front.
_NOT_OURS = frozenset({400, 404, 405, 501})


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


@contextmanager
def translated(base_url: str) -> Iterator[None]:
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


def answer_of(response: httpx.Response, base_url: str) -> Answer:
    """A whole answer.

    Raises:
        ProblemAnswer: an error status.
        BadAnswer: not ours, or a redirect.
    """
    if response.is_error:
        raise problem_of(response, response.content, base_url)
    if response.has_redirect_location:
        raise BadAnswer(str(response.url), f"it answers with a redirect to {response.headers['location']}")
    return Answer(str(response.url), response.status_code, response.headers, response.content)


def problem_of(response: httpx.Response, body: bytes, origin: str) -> ProblemAnswer | BadAnswer:
    """What an answer with an error status says."""
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
