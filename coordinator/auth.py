"""Who is asking, and who may do what: tokens, browser sessions, and the one table route × role.

Called by `api/routing.py` for every request before anything of it is read. Tokens are kept as SHA-256
digests and compared in constant time.
"""

from __future__ import annotations

import functools
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from coordinator.core.problem import ProblemError, problem
from coordinator.limits import Rates
from coordinator.sessions import Sessions, digest, proves
from coordinator.settings import Settings

SESSION_COOKIE = "rankcall_session"


class Role(StrEnum):
    NONE = "none"
    VIEWER = "viewer"
    REPLICA = "replica"
    JOINER = "joiner"  # has the token before the present one: may join, and nothing else
    ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class Principal:
    """Who is asking. `replica_id` and `incarnation` are those a replica's token is bound to."""

    role: Role
    host: str = ""
    replica_id: str | None = None
    incarnation: int | None = None
    wrong_token: bool = False  # it showed one, and it is nobody's

    @property
    def actor(self) -> str:
        """For the audit, e.g. `admin@10.0.0.7` or `replica:r-0123456789@10.0.0.7`."""
        who = f"replica:{self.replica_id}" if self.replica_id else str(self.role)
        if self.wrong_token:
            who = "wrong-token"
        return f"{who}@{self.host or 'local'}"


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
    ("GET", f"{_API}/jobs/{{job_id}}/report"): _READERS,
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
    ("POST", f"{_API}/replicas"): frozenset({Role.ADMIN, Role.JOINER}),
    ("POST", f"{_API}/replicas/{{replica_id}}/report"): _REPLICA,
    ("GET", f"{_API}/replicas/{{replica_id}}/desired"): _REPLICA,
    ("PUT", f"{_API}/replicas/{{replica_id}}/uploads/{{upload_id}}"): _REPLICA,
}


class ReplicaTokens(Protocol):
    """What of `roster.Roster` is needed here."""

    def replica_by_token(self, token: str, /) -> tuple[str, int] | None: ...


class Authority:
    """Knows the secrets of one coordinator and tells who a request comes from."""

    def __init__(self, settings: Settings, replicas: ReplicaTokens, sessions: Sessions, rates: Rates) -> None:
        self._secrets: dict[Role, bytes] = {
            role: digest(secret.get_secret_value())
            for role, secret in (
                (Role.ADMIN, settings.token),
                (Role.VIEWER, settings.viewer_token),
                (Role.JOINER, settings.previous_token),
            )
            if secret is not None
        }
        self._replicas = replicas
        self._sessions = sessions
        self._rates = rates

    @property
    def open(self) -> bool:
        """No token is configured: everybody on this machine is the administrator."""
        return Role.ADMIN not in self._secrets

    def role_of(self, token: str, host: str) -> Role:
        """The role of a configured secret; all are compared whatever the first comparison said.

        Raises:
            ProblemError: 401 for a token that is nobody's, 429 after too many of those from `host`.
        """
        found = self._roles(token)
        if not found:  # whoever has the right one is answered, whatever others at his address try
            self._rates.may_guess(host)
            self._rates.guessed_wrong(host)
            raise unauthenticated("The token is not known to this coordinator.")
        return found[0]

    def knows(self, token: str) -> bool:
        """Whether it is one of the configured secrets, for the audit of who was turned away."""
        return bool(self._roles(token))

    def _roles(self, token: str) -> list[Role]:
        given = digest(token)
        return [role for role, secret in self._secrets.items() if hmac.compare_digest(given, secret)]

    async def identify(
        self, bearer: str | None, session_id: str | None, host: str, now_at: float
    ) -> Principal:
        """Who sends `bearer` or `session_id`.

        Raises:
            ProblemError: 401 for a bearer token that is nobody's (a stale session is nobody, not an error);
                429 after too many of those, or of a viewer's requests, from `host`.
        """
        if bearer is not None:
            known = self._replicas.replica_by_token(bearer)
            if known is not None:
                return _of_replica(host, *known)
            role = self.role_of(bearer, host)
            if role is Role.VIEWER:
                self._rates.request(host)
            return Principal(role, host)
        if session_id is not None:
            signed_in = await self._role_in_session(session_id, now_at)
            if signed_in is not None:
                return Principal(signed_in, host)
        return Principal(Role.ADMIN if self.open else Role.NONE, host)

    async def sign_in(self, token: str, host: str, now_at: float) -> tuple[Role, str]:
        """A session for whoever has this token: its role and its id.

        Raises:
            ProblemError: 401 for a token that is nobody's, 429 after too many of those from `host`.
        """
        role = Role.ADMIN if self.open else self.role_of(token, host)
        if role not in (Role.ADMIN, Role.VIEWER):
            raise unauthenticated("The token is not known to this coordinator.")
        return role, await self._sessions.start(role.value, self._secrets.get(role, b""), now_at)

    async def sign_out(self, session_id: str) -> bool:
        return await self._sessions.end(session_id)

    async def _role_in_session(self, session_id: str, now_at: float) -> Role | None:
        """The role a session stands for, as long as the token that made it is the one that is configured."""
        session = await self._sessions.find(session_id, now_at)
        if session is None:
            return None
        role = Role(session.role)
        return role if proves(session, session_id, self._secrets.get(role, b"")) else None


@functools.lru_cache(maxsize=16_384)  # the same few thousand ask every two seconds
def _of_replica(host: str, replica_id: str, incarnation: int) -> Principal:
    return Principal(Role.REPLICA, host, replica_id=replica_id, incarnation=incarnation)


def authorise(principal: Principal, allowed: frozenset[Role], replica_id: str | None) -> None:
    """Raises ProblemError unless the principal's role is allowed and, for a replica, it speaks of itself."""
    if principal.role not in allowed:
        if principal.role is Role.NONE:
            raise unauthenticated("This needs a token, and the request has none.")
        if principal.role is Role.JOINER:
            raise problem(
                403,
                "SYS101",
                "This is the previous token (RANKCALL_PREVIOUS_TOKEN of the coordinator): replicas may still join with it, "
                "nothing else.",
                hint="Use the token that RANKCALL_TOKEN of the coordinator has now.",
            )
        who = ", ".join(sorted(role.value for role in allowed))
        raise problem(403, "SYS101", f"A {principal.role.value} token may not do this; allowed: {who}.")
    if principal.role is Role.REPLICA and replica_id is not None and replica_id != principal.replica_id:
        raise problem(
            403, "SYS101", f"The token is {principal.replica_id}'s and cannot speak for {replica_id}."
        )


def unauthenticated(detail: str) -> ProblemError:
    return problem(401, "SYS100", detail, headers={"WWW-Authenticate": 'Bearer realm="rankcall"'})
