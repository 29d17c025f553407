"""What the service says of itself: replicas, sessions, events, health, and how it refuses."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import JsonValue

from coordinator.core.protocol import Facts, Finding, Telemetry
from coordinator.core.views.base import View


class ReplicaView(View):
    id: str
    hostname: str
    incarnation: int
    alive: bool
    last_seen_s: float
    registered_at: datetime
    addresses: tuple[str, ...] = ()
    ordinal: int | None = None
    beside_coordinator: bool = False
    gpu_count: int = 0
    rank: int | None = None
    attempt_id: str | None = None
    job_id: str | None = None
    role: Literal["member", "spare", "ending"] = "spare"
    clock_offset_s: float | None = None
    facts: Facts | None = None
    telemetry: Telemetry | None = None


class ReplicaPage(View):
    """`expected` is RANKCALL_NODES; `message` reads e.g. "1 of 2 replicas registered, waiting for one more"."""

    items: tuple[ReplicaView, ...]
    expected: int | None = None
    message: str = ""


class SessionView(View):
    """Who the browser is. `open`: the coordinator runs without a token and serves this machine only."""

    role: Literal["none", "viewer", "replica", "admin"]
    open: bool


class EventView(View):
    id: int
    at: datetime
    actor: str
    action: str
    job_id: str | None = None
    replica_id: str | None = None
    detail: dict[str, JsonValue] = {}


class EventPage(View):
    items: tuple[EventView, ...]
    next_cursor: str | None = None


class Health(View):
    """`GET /healthz` and `/readyz`. `role`: of several coordinator processes on one store one is active; one that
    stands by passes on to it what it is asked."""

    status: Literal["ok"] = "ok"
    version: str = ""
    role: Literal["active", "standby"] = "active"


class Problem(View):
    """RFC 9457 `application/problem+json`, with rankcall's `code`, `hint` and `findings`."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str = ""
    instance: str | None = None
    code: str | None = None
    hint: str | None = None
    findings: tuple[Finding, ...] = ()
