"""Browser sessions, kept in the store: they outlive a restart of the coordinator, expire, and end with their token.

The cookie is a random id. The store has its SHA-256, and a proof that binds it to the token it was made with
(HMAC of the token's digest under the id itself): who reads the store can neither use a session nor guess the
token from it, and a token that was changed signs everybody out whom the one before let in. Called by `auth.py`.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections import OrderedDict
from dataclasses import dataclass, field

from sqlalchemy import Connection

from coordinator.store import Store, queries, rows

# A browser session outlives a night of training, not a rented deployment.
SESSION_S = 7 * 24 * 3600.0
# More sessions than any team has; beyond it the oldest one is signed out.
MOST_SESSIONS = 1024
# So long another coordinator process on the same store may still honour a session that was signed out here.
REMEMBERED_S = 5.0


def digest(secret: str) -> bytes:
    """What is kept of a secret in memory: its SHA-256."""
    return hashlib.sha256(secret.encode()).digest()


@dataclass(slots=True)
class Sessions:
    """The sessions of one deployment; every coordinator process on its store knows them.

    `most`: so many there may be; one more signs out the oldest.
    """

    store: Store
    most: int = MOST_SESSIONS
    _seen: OrderedDict[str, tuple[rows.Session, float]] = field(default_factory=OrderedDict)

    async def start(self, role: str, token: bytes, now_at: float) -> str:
        """A new session's id, for the cookie.

        Args:
            token: digest of the token that was shown; with another one configured, the session is over.
        """
        session_id = secrets.token_urlsafe(32)
        row = rows.Session(_key(session_id), role, _proof(session_id, token), now_at, now_at + SESSION_S)
        await self.store.write(lambda c: queries.insert_session(c, row, self.most))
        return session_id

    async def find(self, session_id: str, now_at: float) -> rows.Session | None:
        """The session of a cookie, unless it is over."""
        key = _key(session_id)
        seen = self._seen.get(key)
        if seen is None or not 0 <= now_at - seen[1] < REMEMBERED_S:
            row = await self.store.read(lambda c: queries.session(c, key))
            if row is None:
                self._seen.pop(key, None)
                return None
            self._seen[key] = seen = row, now_at
            while len(self._seen) > self.most:
                self._seen.popitem(last=False)
        return seen[0] if seen[0].until_at > now_at else None

    async def end(self, session_id: str) -> bool:
        """Sign out; whether there was such a session."""
        key = _key(session_id)
        self._seen.pop(key, None)

        def end(c: Connection) -> bool:
            return queries.end_session(c, key)

        return await self.store.write(end)


def proves(session: rows.Session, session_id: str, token: bytes) -> bool:
    """Whether the session was made with this token."""
    return hmac.compare_digest(session.proof, _proof(session_id, token))


def _key(session_id: str) -> str:
    return hashlib.sha256(session_id.encode()).hexdigest()


def _proof(session_id: str, token: bytes) -> str:
    return hmac.digest(session_id.encode(), token, "sha256").hex()
