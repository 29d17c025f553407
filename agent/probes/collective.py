"""One process's part in the collective check: torch.distributed at its smallest, every value checked.

Runs in a child that `forked.py` forked for one round, and nowhere else: it sets the process's environment
and initialises CUDA. The steps are told as they begin, so that a process that has to be killed at the
deadline has said where it stood. Standard library and torch only.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

# In their order. store: reach the rendezvous port; join: all ranks have come there; init: every pair is
# connected (gloo) or the communicator exists (NCCL); exchange: all-to-all, because a ring's all_reduce only
# touches neighbours; end: everybody is done and the port is given back.
PHASES = ("start", "store", "join", "init", "all_reduce", "exchange", "bandwidth", "barrier", "end", "done")

# Variables that would take over from what the task says; the same names that the launcher scrubs.
_LEFTOVERS = (
    "MASTER_ADDR",
    "MASTER_PORT",
    "WORLD_SIZE",
    "RANK",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
)
# NCCL says at INFO alone that it retries a connect, and which interface it chose.
_NCCL_LOG = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET,ENV,BOOTSTRAP"}

_PAIR_BYTES = 64 * 1024  # between each pair in the all-to-all: enough that a lost large packet shows
_REPEATS = 2  # timed all_reduces of each size, after one that is checked; the faster counts
_LIBRARY_MARGIN = (
    0.1  # the library's own limit comes so much earlier than our kill: its words are worth having
)
_CONNECT_S = 3.0  # one try to reach the rendezvous port; a dropped first packet is repeated after 1 s
_KNOCK_S = 0.05  # between tries
_AGAIN_S = 0.2  # after a store that broke off before all were there
_END_S = 5.0  # rank 0 keeps the store open so long for those that are slower


@dataclass
class Outcome:
    """What this process saw; `forked.py` folds those of one replica into a `CollectiveResult`."""

    ok: bool = False
    phase: str = "start"
    error: str = ""
    init_s: float | None = None
    first_all_reduce_s: float | None = None
    values_ok: bool = False
    bytes_per_s: dict[int, float] = field(default_factory=dict)
    missing_ranks: list[int] = field(default_factory=list)


class WrongValue(Exception):
    """A collective returned something else than arithmetic says."""


class Absent(Exception):
    """Ranks that never came to the store."""

    def __init__(self, ranks: list[int]) -> None:
        who = f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
        super().__init__(f"{who} did not come to the rendezvous")
        self.ranks = ranks


def run(task: Mapping[str, Any], local_rank: int, deadline_s: float, tell: Callable[[str], None]) -> Outcome:
    """Take part as process `local_rank` of `task` (a `CollectiveTask` as JSON); never raises."""
    outcome = Outcome()

    def enter(phase: str) -> None:
        outcome.phase = phase
        tell(phase)

    try:
        _prepare_environment(task)
        _Part(task, local_rank, deadline_s, outcome, enter).play()
    except Absent as absent:
        outcome.missing_ranks = absent.ranks
        outcome.error = str(absent)
    except Exception as problem:
        # torch and the drivers below it raise what they like: all of it is the answer
        outcome.error = explain(problem)
    return outcome


def explain(problem: BaseException) -> str:
    """The words of an exception without torch's C++ stack, on one line."""
    text = str(problem) or type(problem).__name__
    for cut in ("Exception raised from", "\nException ", "C++ CapturedTraceback"):
        text = text.split(cut, 1)[0]
    return " ".join(text.split())[:600]


def _prepare_environment(task: Mapping[str, Any]) -> None:
    for name in _LEFTOVERS:
        os.environ.pop(name, None)
    interface = task.get("interface")
    if interface:
        os.environ["GLOO_SOCKET_IFNAME"] = interface
        os.environ["NCCL_SOCKET_IFNAME"] = f"={interface}"  # without the sign it is a prefix
    if ":" in task["master_address"]:
        os.environ["NCCL_SOCKET_FAMILY"] = "AF_INET6"
    os.environ.update(task.get("environment") or {})
    if task["backend"] == "nccl":
        os.environ.update(_NCCL_LOG)
        os.environ.pop("NCCL_DEBUG_FILE", None)  # its words belong to the result


def _reach(address: str, port: int, until: float) -> None:
    """Wait until the rendezvous port accepts: torch's own client does not say why it could not connect.

    Raises:
        ConnectionError: it did not in time; the message has the last error.
    """
    while True:
        left_s = until - time.monotonic()
        try:
            socket.create_connection((address, port), timeout=max(0.1, min(_CONNECT_S, left_s))).close()
            return
        except OSError as problem:
            # A refused connection is normal for the moment until rank 0 listens.
            if time.monotonic() + _KNOCK_S >= until:
                words = "timed out" if isinstance(problem, TimeoutError) else str(problem.strerror or problem)
                raise ConnectionError(f"connect to {address} port {port}: {words.lower()}") from problem
        time.sleep(_KNOCK_S)


class _Part:
    """The steps of one process, in their order."""

    def __init__(
        self,
        task: Mapping[str, Any],
        local_rank: int,
        deadline_s: float,
        outcome: Outcome,
        enter: Callable[[str], None],
    ) -> None:
        import torch

        self.torch = torch
        self.task = task
        self.local_rank = local_rank
        self.rank: int = task["rank"] * task["processes"] + local_rank
        self.world: int = task["world_size"]
        self.until = time.monotonic() + deadline_s * (1 - _LIBRARY_MARGIN)
        self.outcome = outcome
        self.enter = enter
        self.nccl = task["backend"] == "nccl"
        self.device = torch.device("cuda", local_rank) if self.nccl else torch.device("cpu")
        self.ranks_of_group = self.world // task["processes"]

    def play(self) -> None:
        import torch.distributed as dist

        store = self._joined(dist)
        self._init(dist, store)
        self._all_reduce(dist)
        if self.world > 1:
            self._exchange(dist)
        self._bandwidth(dist)
        self.enter("barrier")
        dist.barrier(device_ids=[self.local_rank] if self.nccl else None)
        self.enter("end")
        dist.destroy_process_group()
        self._leave(store)
        self.outcome.ok = True
        self.enter("done")

    def _joined(self, dist: Any) -> Any:
        """The store, once all are at it. One that breaks off before that was of an earlier round: the next comes at its
        address as soon as its master has been told.
        """
        while True:
            try:
                store = self._store(dist)
                self._join(store)
                return store
            except (RuntimeError, OSError):  # torch's own errors are RuntimeErrors
                if self.rank == 0 or time.monotonic() + _AGAIN_S > self.until:
                    raise
                time.sleep(_AGAIN_S)

    def _left(self) -> timedelta:
        return timedelta(seconds=max(0.5, self.until - time.monotonic()))

    def _store(self, dist: Any) -> Any:
        self.enter("store")
        self.began = time.monotonic()
        if self.rank > 0:
            _reach(self.task["master_address"], self.task["master_port"], self.until)
        store = dist.TCPStore(
            self.task["master_address"],
            self.task["master_port"],
            self.world,
            self.rank == 0,
            self._left(),
            wait_for_workers=False,
        )
        # A rank that was not told yet that its round is over comes to this store too, and must be no one's peer here.
        return dist.PrefixStore(f"{self.task['nonce']}/{self.task['task_id']}", store)

    def _join(self, store: Any) -> None:
        self.enter("join")
        store.set(f"here/{self.rank}", b"1")
        keys = [f"here/{rank}" for rank in range(self.world)]
        try:
            store.wait(keys, self._left())
        except RuntimeError as problem:  # torch's DistStoreError, when time is up or the store has gone
            missing = [rank for rank, key in enumerate(keys) if not store.check([key])]
            if not missing:
                raise
            processes = self.task["processes"]
            raise Absent(sorted({rank // processes for rank in missing})) from problem

    def _init(self, dist: Any, store: Any) -> None:
        self.enter("init")
        if self.nccl:
            self.torch.cuda.set_device(self.device)
        dist.init_process_group(
            self.task["backend"],
            store=dist.PrefixStore("collective", store),
            rank=self.rank,
            world_size=self.world,
            timeout=self._left(),
            device_id=self.device if self.nccl else None,
        )
        self._settle()
        self.outcome.init_s = time.monotonic() - self.began

    def _all_reduce(self, dist: Any) -> None:
        self.enter("all_reduce")
        began = time.monotonic()
        # 1 + 2 + … + world: the script of the field report gave 1 + 2 = 3.
        self._reduce(dist, 4)
        self.outcome.first_all_reduce_s = time.monotonic() - began
        self.outcome.values_ok = True

    def _reduce(self, dist: Any, size_bytes: int) -> Any:
        """All-reduce a pattern of `size_bytes` and check every element of the sum."""
        tensor = self._pattern(size_bytes) + (self.rank + 1)
        dist.all_reduce(tensor)
        self._settle()
        wanted = self._pattern(size_bytes) * self.world + self.world * (self.world + 1) // 2
        self._check(tensor, wanted, f"all_reduce of {size_bytes} bytes")
        return tensor

    def _pattern(self, size_bytes: int) -> Any:
        # Small whole numbers: their sums are exact in float32 for any world that fits in 24 bits.
        count = max(1, size_bytes // 4)
        return self.torch.arange(count, device=self.device, dtype=self.torch.float32) % 61

    def _check(self, got: Any, wanted: Any, what: str) -> None:
        wrong = self.torch.nonzero(got != wanted)
        if len(wrong):
            self.outcome.values_ok = False
            at = int(wrong[0])
            raise WrongValue(
                f"{what}: {len(wrong)} of {got.numel()} values wrong on rank {self.rank}, "
                f"the first is {float(got[at])} instead of {float(wanted[at])}"
            )

    def _exchange(self, dist: Any) -> None:
        self.enter("exchange")
        each = _PAIR_BYTES // 4
        ranks = self.torch.arange(self.world, device=self.device, dtype=self.torch.float32)
        sent = (ranks + self.rank * self.world).repeat_interleave(each)
        got = self.torch.empty_like(sent)
        dist.all_to_all_single(got, sent)
        self._settle()
        self._check(got, (ranks * self.world + self.rank).repeat_interleave(each), "all_to_all")

    def _bandwidth(self, dist: Any) -> None:
        self.enter("bandwidth")
        for size_bytes in self.task["sizes_bytes"]:
            tensor = self._reduce(dist, size_bytes)
            seconds = []
            for _ in range(_REPEATS):
                began = time.monotonic()
                dist.all_reduce(tensor)
                self._settle()
                seconds.append(time.monotonic() - began)
            self.outcome.bytes_per_s[size_bytes] = size_bytes / max(min(seconds), 1e-9)

    def _settle(self) -> None:
        if self.nccl:
            self.torch.cuda.synchronize(self.device)

    def _leave(self, store: Any) -> None:
        """Rank 0 holds the store, so it leaves last."""
        store.set(f"done/{self.rank}", b"1")
        if self.rank == 0:
            left = min(self._left(), timedelta(seconds=_END_S))
            store.wait([f"done/{rank}" for rank in range(self.world)], left)
