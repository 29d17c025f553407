"""What the handshake of an attempt found: the replicas, the links between them, and the rounds of the collective check."""

from __future__ import annotations

from typing import Literal

from coordinator.core.protocol import Finding
from coordinator.core.views.base import View
from coordinator.core.views.job import AttemptView, JobSummary


class OfferView(View):
    """An address a replica offered: how many of the peers that tried it reached it."""

    address: str
    interface: str
    used: bool = False
    reached_by: int = 0
    tried_by: int = 0


class LinkEndView(View):
    """A replica in the grid. `address` and `interface` are those its peers, the rendezvous, gloo and NCCL use.

    `clock_offset_s`: its clock minus the coordinator's; shown, relied upon by nothing.
    """

    rank: int
    replica_id: str
    hostname: str = ""
    address: str = ""
    interface: str | None = None
    offers: tuple[OfferView, ...] = ()
    clock_offset_s: float | None = None


class LinkView(View):
    """One direction of one link, from rank `source` to rank `target`, as `source` saw it.

    Attributes:
        state: unknown while it is not tested or not reported.
        fault: how it failed, in one word; `error` says it in a sentence.
        at_fault: it failed by itself; of two that failed, the other may have lost only its answer on this one.
        bytes_per_s, return_bytes_per_s: of the payload on its way there and back; None where only a sample is measured.
        tries: 2 where the first try failed.
    """

    source: int
    target: int
    state: Literal["ok", "failed", "unknown"] = "unknown"
    fault: str = ""
    error: str = ""
    at_fault: bool = False
    rtt_s: float | None = None
    bytes_per_s: float | None = None
    return_bytes_per_s: float | None = None
    tries: int = 1


class GroupView(View):
    """Ranks that were tested together; `passed` is null while they are."""

    ranks: tuple[int, ...]
    passed: bool | None = None


class RoundView(View):
    """A round of the collective check: within each replica, among all, in groups to isolate a fault, or among all
    once more to confirm that it is gone."""

    number: int
    kind: Literal["within", "all", "groups", "confirming"]
    groups: tuple[GroupView, ...] = ()


class LinkGrid(View):
    """What the handshake of one attempt found: `state` is that of its tcp stage, or failed where the collective after it
    failed; `links` has both directions of each.

    `good`, `failed` and `untested` count all links, also where only the worst were asked for.
    """

    attempt: int
    state: Literal["waiting", "running", "passed", "failed", "skipped"] = "waiting"
    replicas: tuple[LinkEndView, ...] = ()
    links: tuple[LinkView, ...] = ()
    good: int = 0
    failed: int = 0
    untested: int = 0
    rounds: tuple[RoundView, ...] = ()


class PreflightView(JobSummary):
    """A preflight is a job of kind "preflight" that ends after the collective: `/jobs/{id}` shows it too."""

    attempt: AttemptView | None = None
    findings: tuple[Finding, ...] = ()
    grid: LinkGrid | None = None
