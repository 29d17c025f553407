"""Who is asking, and who may do what: tokens, browser sessions, and the one table route × role.

Called by `api/routing.py` for every request before anything of it is read. Tokens are kept as SHA-256
digests and compared in constant time.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from coordinator.core.problem import ProblemError, problem
from coordinator.settings import Settings

SESSION_COOKIE = "rankcall_session"
# A browser session outlives a night of training, not a rented deployment.
SESSION_S = 7 * 24 * 3600.0
# More sessions than any team has; beyond it the oldest one is signed out.
MOST_SESSIONS = 1024


class Role(StrEnum):
    NONE = "none"
    VIEWER = "viewer"
    REPLICA = "replica"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class Principal:
    """Who is asking. `replica_id` and `incarnation` are those a replica's token is bound to."""

    role: Role
    host: str = ""
    replica_id: str | None = None
    incarnation: int | None = None
    by_session: bool = False

    @property
    def actor(self) -> str:
        """For the audit, e.g. `admin@10.0.0.7` or `replica:r-0123456789`."""
        return f"replica:{self.replica_id}" if self.replica_id else f"{self.role}@{self.host or 'local'}"


_ANYBODY = frozenset(Role)
_READERS = frozenset({Role.VIEWER, Role.ADMIN})
_ADMIN = frozenset({Role.ADMIN})
_REPLICA = frozenset({Role.REPLICA})
_API = "/api/v1"

# Every route has a row here; the app does not start with a route that has none.
ACCESS: Mapping[tuple[str, str], frozenset[Role]] = {
    ("GET", "/healthz"): _ANYBODY,
    ("GET", "/readyz"): _ANYBODY,
    ("GET", "/openapi.json"): _ANYBODY,
    ("GET", "/metrics"): _READERS,
    ("GET", f"{_API}/session"): _ANYBODY,
    ("POST", f"{_API}/session"): _ANYBODY,
    ("DELETE", f"{_API}/session"): _ANYBODY,
    ("POST", f"{_API}/jobs"): _ADMIN,
    ("GET", f"{_API}/jobs"): _READERS,
    ("GET", f"{_API}/jobs/{{job_id}}"): _READERS,
    ("POST", f"{_API}/jobs/{{job_id}}/cancel"): _ADMIN,
    ("POST", f"{_API}/jobs/{{job_id}}/retry"): _ADMIN,
    ("GET", f"{_API}/jobs/{{job_id}}/events"): _READERS,
    ("GET", f"{_API}/jobs/{{job_id}}/logs"): _READERS,
    ("GET", f"{_API}/jobs/{{job_id}}/streams"): _READERS,
    ("GET", f"{_API}/jobs/{{job_id}}/metrics"): _READERS,
    ("GET", f"{_API}/jobs/{{job_id}}/findings"): _READERS,
    ("GET", f"{_API}/jobs/{{job_id}}/files"): _READERS,
    ("GET", f"{_API}/jobs/{{job_id}}/links"): _READERS,
    ("POST", f"{_API}/preflights"): _ADMIN,
    ("GET", f"{_API}/preflights/{{preflight_id}}"): _READERS,
    ("GET", f"{_API}/jobs/{{job_id}}/artifacts"): _READERS,
    ("GET", f"{_API}/jobs/{{job_id}}/artifacts/{{artifact_id}}"): _READERS,
    ("HEAD", f"{_API}/jobs/{{job_id}}/artifacts/{{artifact_id}}"): _READERS,
    ("GET", f"{_API}/jobs/{{job_id}}/bundle"): frozenset({Role.REPLICA, Role.ADMIN}),
    ("POST", f"{_API}/checks"): _READERS,
    ("GET", f"{_API}/codes"): _ANYBODY,
    ("GET", f"{_API}/codes/{{code}}"): _ANYBODY,
    ("GET", f"{_API}/events"): _READERS,
    ("GET", f"{_API}/watch"): _READERS,
    ("GET", f"{_API}/replicas"): _READERS,
    ("POST", f"{_API}/replicas"): _ADMIN,
    ("POST", f"{_API}/replicas/{{replica_id}}/report"): _REPLICA,
    ("GET", f"{_API}/replicas/{{replica_id}}/desired"): _REPLICA,
    ("PUT", f"{_API}/replicas/{{replica_id}}/uploads/{{upload_id}}"): _REPLICA,
}


def digest(secret: str) -> bytes:
    """What is kept of a secret: its SHA-256. Tokens are long and random, so no salt and no stretching."""
    return hashlib.sha256(secret.encode()).digest()


class ReplicaTokens(Protocol):
    """What of `roster.Roster` is needed here."""

    def replica_by_token(self, token: str, /) -> tuple[str, int] | None: ...


@dataclass(slots=True)
class Sessions:
    """Browser sessions, held here and nowhere else: the cookie is a random id, this maps its digest to a role.

    They end with the coordinator's process; a browser then signs in again.
    """

    _held: dict[bytes, tuple[Role, float]] = field(default_factory=dict)

    def start(self, role: Role, now_at: float) -> str:
        """A new session's id, for the cookie."""
        for key in [key for key, (_, until_at) in self._held.items() if until_at <= now_at]:
            del self._held[key]
        while len(self._held) >= MOST_SESSIONS:
            del self._held[next(iter(self._held))]
        session_id = secrets.token_urlsafe(32)
        self._held[digest(session_id)] = (role, now_at + SESSION_S)
        return session_id

    def role(self, session_id: str, now_at: float) -> Role | None:
        held = self._held.get(digest(session_id))
        return held[0] if held is not None and held[1] > now_at else None

    def end(self, session_id: str) -> None:
        self._held.pop(digest(session_id), None)


class Authority:
    """Knows the secrets of one coordinator and tells who a request comes from."""

    def __init__(self, settings: Settings, replicas: ReplicaTokens) -> None:
        self._admin = digest(settings.token.get_secret_value()) if settings.token else None
        self._viewer = digest(settings.viewer_token.get_secret_value()) if settings.viewer_token else None
        self._replicas = replicas
        self.sessions = Sessions()

    @property
    def open(self) -> bool:
        """No token is configured: everybody on this machine is the administrator."""
        return self._admin is None

    def role_of(self, token: str) -> Role | None:
        """The role of a configured secret; both are compared whatever the first comparison said."""
        given = digest(token)
        admin = self._admin is not None and hmac.compare_digest(given, self._admin)
        viewer = self._viewer is not None and hmac.compare_digest(given, self._viewer)
        return Role.ADMIN if admin else Role.VIEWER if viewer else None

    def identify(self, bearer: str | None, session_id: str | None, host: str, now_at: float) -> Principal:
        """Who sends `bearer` or `session_id`.

        Raises:
            ProblemError: 401 for a bearer token that is nobody's. (A stale session is nobody, not an error.)
        """
        if bearer is not None:
            known = self._replicas.replica_by_token(bearer)
            if known is not None:
                return Principal(Role.REPLICA, host, replica_id=known[0], incarnation=known[1])
            role = self.role_of(bearer)
            if role is None:
                raise unauthenticated("The token is not known to this coordinator.")
            return Principal(role, host)
        if session_id is not None:
            role = self.sessions.role(session_id, now_at)
            if role is not None:
                return Principal(role, host, by_session=True)
        return Principal(Role.ADMIN if self.open else Role.NONE, host)


def authorise(principal: Principal, allowed: frozenset[Role], replica_id: str | None) -> None:
    """Raises ProblemError unless the principal's role is allowed and, for a replica, it speaks of itself."""
    if principal.role not in allowed:
        if principal.role is Role.NONE:
            raise unauthenticated("This needs a token, and the request has none.")
        who = ", ".join(sorted(role.value for role in allowed))
        raise problem(403, "SYS101", f"A {principal.role.value} token may not do this; allowed: {who}.")
    if principal.role is Role.REPLICA and replica_id is not None and replica_id != principal.replica_id:
        raise problem(
            403, "SYS101", f"The token is {principal.replica_id}'s and cannot speak for {replica_id}."
        )


def unauthenticated(detail: str) -> ProblemError:
    return problem(401, "SYS100", detail, headers={"WWW-Authenticate": 'Bearer realm="rankcall"'})
