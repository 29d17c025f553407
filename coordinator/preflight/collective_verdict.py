"""What the results of one collective round mean, as findings. Called through `verdict.judge_collective`.

One failure makes all others fail: whoever waits for the broken replica reports a timeout. So causes that a
replica reports of itself come first, then who did not come, then where the rest stood.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Mapping, Sequence

from pydantic import JsonValue

from coordinator.core.catalogue import finding
from coordinator.core.protocol import CollectiveResult, Finding, Member
from coordinator.preflight.library_words import understand

# As `agent.probes.collective.PHASES`, with what comes before the child runs at all.
_ORDER = (
    "import", "start", "store", "join", "init", "all_reduce", "exchange", "bandwidth", "barrier", "end", "done",
)  # fmt: skip
_DIED = re.compile(r"the process (was ended by|ended by itself)")
_WRONG = "values are wrong"
_CUT_OFF = re.compile(r"Failed to recv|reset by peer|Broken pipe|Connection was likely closed")
_REMOTE = re.compile(r"remote=\[?\[?(?:::ffff:)?([0-9a-fA-F.:]+?)\]?(?::\d+)?\]")

_SLOWER = 5.0  # times below the median bandwidth of all replicas that make a straggler
_COMPARED = 3  # replicas needed before one can be called slower than the others
_SHOWN = 32


def judge_collective(
    members: Sequence[Member], results: Mapping[str, CollectiveResult]
) -> tuple[Finding, ...]:
    """Findings of one collective round; an error among them blocks. `results` lacks who did not report."""
    judge = _Judge(members, results)
    if all(replica in results and results[replica].ok for replica in judge.names):
        return tuple(judge.stragglers())
    found = [*judge.own_faults()]
    found += judge.unreachable_port()
    found += judge.absent()
    return tuple(found or judge.stood())


class _Judge:
    def __init__(self, members: Sequence[Member], results: Mapping[str, CollectiveResult]) -> None:
        self.members = members
        self.results = results
        self.names = {m.replica_id: f"rank {m.rank} ({m.name or m.address or m.replica_id})" for m in members}
        self.explained: set[str] = set()

    def own_faults(self) -> Iterable[Finding]:
        """What a replica says of itself, and silence."""
        for at, member in enumerate(self.members):
            replica = member.replica_id
            name = self.names[replica]
            result = self.results.get(replica)
            if result is None:
                yield self._of(replica, "COL008", f"{name} did not report its collective check in time")
            elif result.ok:
                continue
            elif result.phase == "import":
                yield self._of(replica, "COL001", f"{name}: {result.error}")
            elif _DIED.search(result.error):
                yield self._of(replica, "COL007", f"{name}: {result.error}, in {_words(result.phase)}")
            elif result.phase == "start":
                yield self._of(replica, "COL008", f"{name}: {result.error}")
            elif result.phase == "end" and "still listened on" in result.error:
                yield self._of(replica, "COL009", f"{name}: {result.error}")
            elif at == 0 and result.phase == "store":
                yield self._of(
                    replica, "COL009", f"{name} cannot listen on the rendezvous port: {result.error}"
                )
        for replica, name in self.names.items():
            result = self.results.get(replica)
            if result is None or result.ok or replica in self.explained:
                continue
            known = understand((result.error, *result.log))
            if known is not None and known.own:
                code = "COL004" if _place(result.phase) <= _place("init") else "COL005"
                message = f"{name}: {known.meaning} ({result.error})"
                self.explained.add(replica)
                yield self._finding(code, message, replica, [replica], known.hint)
        wrong = [r for r in self.names if (got := self.results.get(r)) is not None and _WRONG in got.error]
        if wrong:
            self.explained.update(wrong)
            errors: dict[str, JsonValue] = {replica: self.results[replica].error for replica in wrong}
            yield finding(
                "COL006",
                f"wrong values on {len(wrong)} of {len(self.names)} replicas, e.g. {self.names[wrong[0]]}: "
                f"{self.results[wrong[0]].error}",
                replica=wrong[0] if len(wrong) == 1 else None,
                evidence={"errors": errors},
            )

    def unreachable_port(self) -> Iterable[Finding]:
        """Replicas that could not connect to the store, while rank 0 was there."""
        master = self.members[0].replica_id
        if master in self.explained:
            return
        failed = [m.replica_id for m in self.members[1:] if self._stood_in(m.replica_id, "store")]
        if self.explained:
            # Who got through and was cut off met the end of a round that another one had broken.
            failed = [replica for replica in failed if not _CUT_OFF.search(self.results[replica].error)]
        if not failed:
            return
        self.explained.update(failed)
        others = len(self.members) - 1
        if len(failed) == others and others > 1:
            self.explained.add(master)
            yield self._finding(
                "COL002",
                f"no replica reaches the rendezvous port of {self.names[master]}: {self.results[failed[0]].error}",
                master,
                [master, *failed],
            )
            return
        for replica in failed:
            yield self._finding(
                "COL002",
                f"{self.names[replica]} does not reach the rendezvous port of {self.names[master]}: "
                f"{self.results[replica].error}",
                replica if others > 1 else None,
                [master, replica],
            )

    def absent(self) -> Iterable[Finding]:
        """Replicas that others waited for at the store, and that nothing explains yet."""
        missing = {
            self.members[rank].replica_id: len(result.missing_ranks)
            for result in self.results.values()
            for rank in result.missing_ranks
            if rank < len(self.members)
        }
        for replica in [member.replica_id for member in self.members if member.replica_id in missing]:
            if replica not in self.explained:
                said = self.results.get(replica)
                words = f"; it says: {said.error}" if said is not None and said.error else ""
                yield self._of(
                    replica,
                    "COL003",
                    f"{self.names[replica]} did not come to the rendezvous of the check{words}",
                )

    def stood(self) -> Iterable[Finding]:
        """No cause is plain: say where each stood, and whom the errors name."""
        failed = [r for r in self.names if (got := self.results.get(r)) is not None and not got.ok]
        phase = min((self.results[r].phase for r in failed), key=_place)
        first = [replica for replica in failed if self.results[replica].phase == phase]
        code = "COL004" if _place(phase) <= _place("init") else "COL005"
        known = understand(line for r in failed for line in (self.results[r].error, *self.results[r].log))
        blamed = sorted({name for replica in failed for name in self._named_in(self.results[replica].error)})
        words = f"; the errors name {', '.join(blamed)}" if blamed else ""
        if known is not None:
            words += f"; {known.meaning}"
        yield self._finding(
            code,
            f"the check stopped in {_words(phase)} on {_some([self.names[r] for r in first])}: "
            f"{self.results[first[0]].error}{words}",
            None,
            failed,
            known.hint if known is not None else None,
        )

    def stragglers(self) -> Iterable[Finding]:
        sizes = sorted({size for result in self.results.values() for size in result.bytes_per_s})
        if len(self.members) < _COMPARED or not sizes:
            return
        largest = sizes[-1]
        speeds = {r: self.results[r].bytes_per_s.get(largest) for r in self.names}
        known = {replica: speed for replica, speed in speeds.items() if speed}
        if len(known) < _COMPARED:
            return
        usual = statistics.median(known.values())
        for replica, speed in known.items():
            if speed * _SLOWER < usual:
                yield finding(
                    "COL010",
                    f"{self.names[replica]} reduced {largest} bytes at {speed / 1e6:.1f} MB/s, "
                    f"the median is {usual / 1e6:.1f} MB/s",
                    replica=replica,
                    evidence={"bytes_per_s": speed, "median_bytes_per_s": usual, "size_bytes": largest},
                )

    def _stood_in(self, replica: str, phase: str) -> bool:
        result = self.results.get(replica)
        return (
            result is not None and not result.ok and result.phase == phase and replica not in self.explained
        )

    def _named_in(self, error: str) -> Iterable[str]:
        for address in _REMOTE.findall(error):
            for member in self.members:
                if member.address == address:
                    yield self.names[member.replica_id]

    def _of(self, replica: str, code: str, message: str) -> Finding:
        self.explained.add(replica)
        return self._finding(code, message, replica, [replica])

    def _finding(
        self,
        code: str,
        message: str,
        replica: str | None,
        concerned: Sequence[str],
        hint: str | None = None,
    ) -> Finding:
        evidence: dict[str, JsonValue] = {"replicas": list(concerned[:_SHOWN]), "stood": self._places()}
        logs: dict[str, JsonValue] = {
            r: list(self.results[r].log) for r in concerned if r in self.results and self.results[r].log
        }
        if logs:
            evidence["log"] = logs
        return finding(code, message, hint=hint, replica=replica, evidence=evidence)

    def _places(self) -> dict[str, JsonValue]:
        """Where each replica stood, the earliest first."""
        seen = sorted(self.results.items(), key=lambda item: _place(item[1].phase))
        return {
            replica: f"{got.phase}: {got.error}" if got.error else got.phase for replica, got in seen[:_SHOWN]
        }


def _place(phase: str) -> int:
    return _ORDER.index(phase) if phase in _ORDER else 0


def _words(phase: str) -> str:
    return {
        "store": "reaching the rendezvous port",
        "join": "waiting for all ranks at the rendezvous",
        "init": "connecting the ranks",
        "all_reduce": "the first all_reduce",
        "exchange": "the all-to-all exchange",
        "bandwidth": "the bandwidth measurement",
        "barrier": "the barrier",
        "end": "the orderly end",
    }.get(phase, phase or "its start")


def _some(names: Sequence[str]) -> str:
    if len(names) <= 3:
        return ", ".join(names)
    return f"{', '.join(names[:2])} and {len(names) - 2} more"
