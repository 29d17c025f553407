"""The agent's side of the conversation: register, held reads, reports, bundles, uploads. One coordinator at a time.

`Coordinator` registers, and again whenever the coordinator no longer knows this replica. Patience is `Backoff`
(how long to wait) and `Murmur` (how often to say so). Called by the loops of `main.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
from collections.abc import AsyncIterable, Awaitable, Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus

import structlog
from pydantic import BaseModel

from coordinator.core.clock import monotonic_s
from coordinator.core.http import Answer, AsyncClient, ProblemAnswer, Timeouts, Unreachable
from coordinator.core.protocol import Desired, Registered, Registration, Report, ReportReply
from coordinator.core.whereabouts import next_of

log = structlog.get_logger("agent")

HOLD_S = 20.0  # how long the coordinator may hold a read: below what proxies in between allow
_HOLD_MARGIN_S = 15.0  # beyond that, an answer to a held read is not coming
_UPLOAD_STALL_S = 120.0  # a download that is read slowly slows the upload; one that stands still is given up
# A coordinator that takes longer for a report is as good as gone; reports are repeated.
_TIMEOUTS = Timeouts(connect_s=5.0, transfer_s=15.0)
_PREFIX = "/api/v1"
_INCARNATION = re.compile(r"incarnation \((\d+)\)")
_WRONG_TOKEN = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
_NOT_THERE = (HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT)
_NOT_A_MEMBER = (*_WRONG_TOKEN, HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT)


@dataclass(slots=True)
class Backoff:
    """Waits that double up to `longest_s`, each shortened by up to a third at random; in the first minute they stay
    short, because what is waited for is starting just now.
    """

    first_s: float = 0.1
    eager_s: float = 0.5
    eager_for_s: float = 60.0
    longest_s: float = 10.0
    _next_s: float = 0.0
    _since_s: float = 0.0

    def again_s(self) -> float:
        """How long to wait now."""
        now_s = monotonic_s()
        if self._next_s == 0.0:
            self._since_s = now_s
        limit_s = self.eager_s if now_s - self._since_s < self.eager_for_s else self.longest_s
        self._next_s = min(max(self.first_s, self._next_s * 2), limit_s)
        return self._next_s * random.uniform(0.67, 1.0)  # noqa: S311  spreads load, hides nothing

    def reset(self) -> None:
        self._next_s = 0.0


@dataclass(slots=True)
class Murmur:
    """Says the same thing now and then: at once, and then at intervals that double up to `longest_s`."""

    first_s: float = 15.0
    longest_s: float = 600.0
    _said: str = ""
    _since_s: float = 0.0
    _next_s: float = 0.0
    _interval_s: float = 0.0

    def say(self, text: str, **facts: object) -> None:
        now = monotonic_s()
        if not self._said:
            self._since_s = now
        if text != self._said:
            self._said, self._interval_s = text, self.first_s
        elif now < self._next_s:
            return
        else:
            self._interval_s = min(self._interval_s * 2, self.longest_s)
            facts = {**facts, "for_s": round(now - self._since_s)}
        self._next_s = now + self._interval_s
        log.warning(text, **facts)

    def over(self, text: str, **facts: object) -> None:
        """What was complained about is over; says so if there was a complaint."""
        if self._said:
            log.info(text, after_s=round(monotonic_s() - self._since_s, 1), **facts)
        self._said = ""


class NotRegistered(Exception):
    """The coordinator does not know this replica, its token or its incarnation; `keep_registered` sees to it."""


class Coordinator:
    """The coordinator, wherever it is now.

    Args:
        locate: where it is: the base URLs of its processes, or an object whose `why` says why that is not known yet.
        join_token: proves that this replica belongs to the deployment.
    """

    def __init__(self, locate: Callable[[], Awaitable[object]], join_token: str | None) -> None:
        self._locate = locate
        self._join_token = join_token
        self._token = join_token
        self._replica_id = ""
        self._client: AsyncClient | None = None
        self._missing = asyncio.Event()
        self._missing.set()
        self._registered = asyncio.Event()
        self._answered = asyncio.Event()

    @property
    def url(self) -> str:
        return self._client.base_url if self._client else ""

    @property
    def registered(self) -> bool:
        return self._registered.is_set()

    async def wait_registered(self) -> None:
        await self._registered.wait()

    async def relocate(self, *, failed: str = "") -> None:
        """Look where the coordinator is; keeps the connection if it is where it was.

        Args:
            failed: the process at this address did not answer: go on to the next, where there are several.

        Raises:
            Unreachable: nothing says where it is yet.
        """
        places = await self._locate()
        if not isinstance(places, tuple):
            raise Unreachable("the coordinator", str(getattr(places, "why", "not known where")))
        before = self._client
        now = before.base_url if before is not None else ""
        place = next_of(places, now, failed=bool(now) and now == failed)
        if before is not None and before.base_url == place.rstrip("/"):
            return
        self._client = AsyncClient(place, token=self._token, timeouts=_TIMEOUTS)
        if before is not None:
            await before.aclose()

    async def wait_and_relocate(self, backoff: Backoff, error: Unreachable | ProblemAnswer) -> None:
        """After a failure: wait, at least as long as the coordinator asked for, and see whether it has moved.

        One that was away is back for all loops as soon as it has answered one of them.
        """
        if isinstance(error, ProblemAnswer):
            await asyncio.sleep(max(backoff.again_s(), min(error.retry_after_s or 0.0, backoff.longest_s)))
        else:
            self._answered.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(backoff.again_s()):
                    await self._answered.wait()
        with contextlib.suppress(Unreachable):
            await self.relocate(failed=_address_of(error))

    async def keep_registered(
        self,
        introduce: Callable[[], Awaitable[Registration]],
        outdated: Callable[[int], None],
        welcome: Callable[[Registered], Awaitable[None]],
    ) -> None:
        """Register, and again whenever that is lost; says now and then why it does not work. Never returns.

        Args:
            introduce: what to register with, as of now.
            outdated: the coordinator has seen a later incarnation than `introduce` names (0: it does not say which).
            welcome: called after each registration, before anything else is said.
        """
        backoff, murmur, failed = Backoff(), Murmur(), ""
        while True:
            await self._missing.wait()
            asked_s = 0.0
            try:
                await self.relocate(failed=failed)
                registered = await self._register(await introduce())
            except Unreachable as error:
                murmur.say("waiting for the coordinator", why=str(error), hint=error.hint)
                failed = error.url
            except ProblemAnswer as error:
                if error.status == HTTPStatus.CONFLICT and error.code != "SYS119":
                    said = _INCARNATION.search(str(error))
                    outdated(int(said[1]) if said else 0)
                asked_s, failed = min(error.retry_after_s or 0.0, backoff.longest_s), _address_of(error)
                murmur.say(_refusal(error), status=error.status, url=self.url, hint=error.hint or "")
            else:
                failed = ""
                murmur.over("the coordinator is there", url=self.url)
                for finding in registered.findings:
                    log.warning(finding.message, code=finding.code, hint=finding.hint)
                backoff.reset()
                await welcome(registered)
                self._missing.clear()
                self._registered.set()
                log.info(
                    "registered",
                    replica=registered.replica_id,
                    incarnation=registered.incarnation,
                    url=self.url,
                )
                continue
            await asyncio.sleep(max(backoff.again_s(), asked_s))

    async def _register(self, registration: Registration) -> Registered:
        client = self._connected()
        client.use_token(self._join_token)
        answer = await client.request("POST", f"{_PREFIX}/replicas", message=registration)
        registered = answer.parse(Registered)
        self._token = registered.token
        client.use_token(registered.token)
        self._replica_id = registered.replica_id
        return registered

    async def desired(self, version: str) -> Desired | None:
        """What this replica should do; held until it is something else than `version`. None: still that.

        Raises:
            Unreachable, ProblemAnswer, NotRegistered.
        """
        headers = {"Prefer": f"wait={HOLD_S:.0f}"}
        if version:
            headers["If-None-Match"] = f'"{version}"'
        answer = await self._as_member("GET", "desired", headers=headers, transfer_s=HOLD_S + _HOLD_MARGIN_S)
        return None if answer.status == HTTPStatus.NOT_MODIFIED else answer.parse(Desired)

    async def report(self, report: Report) -> ReportReply:
        """Say what is.

        Raises:
            Unreachable, ProblemAnswer, NotRegistered.
        """
        return (await self._as_member("POST", "report", message=report)).parse(ReportReply)

    async def upload(self, upload_id: str, body: AsyncIterable[bytes] | bytes, *, error: str = "") -> None:
        """Send a file somebody waits for, or say why it cannot be sent.

        Raises:
            Unreachable, ProblemAnswer, NotRegistered.
        """
        headers = {"Content-Type": "application/octet-stream"}
        if error:
            headers["X-Rankcall-Error"] = error.encode("ascii", "replace").decode()[:500].replace("\n", " ")
        await self._as_member(
            "PUT", f"uploads/{upload_id}", content=body, headers=headers, transfer_s=_UPLOAD_STALL_S
        )

    async def bundle(self, job_id: str, into: Callable[[bytes], object]) -> None:
        """Fetch the files of a job, piece by piece.

        Raises:
            Unreachable, ProblemAnswer, NotRegistered.
        """
        token = self._token
        try:
            async with self._connected().stream("GET", f"{_PREFIX}/jobs/{job_id}/bundle") as (_, pieces):
                async for piece in pieces:
                    into(piece)
        except ProblemAnswer as error:
            self._judge(error, token, (HTTPStatus.UNAUTHORIZED,))
            raise

    async def aclose(self) -> None:
        if self._client is not None:
            await self._client.aclose()

    async def _as_member(
        self,
        method: str,
        what: str,
        *,
        message: BaseModel | None = None,
        content: AsyncIterable[bytes] | bytes | None = None,
        headers: Mapping[str, str] | None = None,
        transfer_s: float | None = None,
    ) -> Answer:
        token = self._token
        try:
            answer = await self._connected().request(
                method,
                f"{_PREFIX}/replicas/{self._replica_id}/{what}",
                message=message,
                content=content,
                headers=headers,
                transfer_s=transfer_s,
            )
            self._answered.set()
            return answer
        except ProblemAnswer as error:
            self._judge(
                error, token, _NOT_A_MEMBER if message is not None or method == "GET" else _WRONG_TOKEN
            )
            raise

    def _judge(self, error: ProblemAnswer, token: str | None, not_a_member: tuple[int, ...]) -> None:
        """Some refusals mean: register. Nothing follows from one that an older token got."""
        if error.status not in not_a_member:
            return
        if token == self._token:
            self._registered.clear()
            self._missing.set()
        raise NotRegistered from error

    def _connected(self) -> AsyncClient:
        if self._client is None:
            raise Unreachable("the coordinator", "not known where yet")
        return self._client


def _address_of(error: Unreachable | ProblemAnswer) -> str:
    """Where a coordinator process does not answer, or says that it cannot; "" for one that answers well enough."""
    if isinstance(error, ProblemAnswer) and error.status not in _NOT_THERE:
        return ""
    return error.url


def _refusal(error: ProblemAnswer) -> str:
    if error.status in _WRONG_TOKEN:
        return "the coordinator does not accept RANKCALL_TOKEN; it has to be the same on all replicas"
    if error.code == "SYS119":
        return str(error)
    return f"the coordinator refuses this replica: {error}"
