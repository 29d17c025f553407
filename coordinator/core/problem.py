"""The one builder of RFC 9457 problems. Raised anywhere below the API, answered by `api/problems.py`.

Every refusal has a code of the catalogue, so `rankcall explain CODE` knows more about it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http import HTTPStatus

from coordinator.core.catalogue import CODES
from coordinator.core.protocol import Finding
from coordinator.core.views import Problem

MEDIA_TYPE = "application/problem+json"


class ProblemError(Exception):
    """A refusal on its way to the client.

    Attributes:
        problem: the body, `problem.status` its HTTP status.
        headers: further response headers, e.g. `WWW-Authenticate`.
    """

    def __init__(self, problem: Problem, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(problem.detail or problem.title)
        self.problem = problem
        self.headers = dict(headers or {})


def problem(
    status: int,
    code: str,
    detail: str,
    *,
    hint: str | None = None,
    findings: Sequence[Finding] = (),
    headers: Mapping[str, str] | None = None,
) -> ProblemError:
    """A refusal of a catalogued code; title and hint default to the catalogue's.

    Raises:
        KeyError: for a code that is not in the catalogue.
    """
    entry = CODES[code]
    body = Problem(
        type=f"urn:rankcall:{code}",
        title=entry.title or HTTPStatus(status).phrase,
        status=status,
        detail=detail,
        code=code,
        hint=entry.fix if hint is None else hint,
        findings=tuple(findings),
    )
    return ProblemError(body, headers)
