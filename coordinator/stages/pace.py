"""A rank that holds the others up is named once, with what differs on its replica. Pure; called by `work.py`."""

from __future__ import annotations

from pydantic import JsonValue

from coordinator.attempt import AttemptState, Watched
from coordinator.core.catalogue import finding
from coordinator.core.protocol import Stage, Telemetry
from coordinator.core.readings import ranks_of
from coordinator.core.straggler import Load, Straggler, differences, stragglers
from coordinator.core.track import Track
from coordinator.stages.verdict import Verdict

_CODE = "RUN057"


def judge_pace(attempt: AttemptState, watched: Watched) -> Verdict | None:
    """A warning for the slowest rank that has not been named yet; None where there is none."""
    for slow in stragglers(watched.own):
        said = f"{_CODE}:{slow.rank}"
        if said in attempt.warned:
            continue
        loads = {track.rank: _load(attempt, watched, track) for track in watched.tracks}
        why = differences(
            loads.get(slow.rank, Load()), [load for rank, load in loads.items() if rank != slow.rank]
        )
        seat = attempt.seats[slow.rank // max(1, attempt.gpus_per_node)]
        evidence: dict[str, JsonValue] = {
            "rank": slow.rank,
            "part": slow.part,
            "own_s": round(slow.own_s, 4),
            "others_s": round(slow.others_s, 4),
            "differs": list(why),
        }
        found = finding(
            _CODE,
            _sentence(slow, seat.hostname or seat.replica_id, why),
            stage=Stage.TRAIN,
            replica=seat.replica_id,
            evidence=evidence,
        )
        return Verdict("pending", findings=(found,), updates={"warned": (*attempt.warned, said)})
    return None


def _sentence(slow: Straggler, host: str, why: tuple[str, ...]) -> str:
    what = "gets its batch and computes it" if slow.part == "compute" else "waits for its data and computes"
    said = (
        f"Rank {slow.rank} ({host}) holds the others up: it {what} in {_time(slow.own_s)}, the others in "
        f"{_time(slow.others_s)}"
    )
    if slow.part == "data":
        why = ("its time goes into reading data", *why)
    return f"{said}; {', '.join(why)}." if why else f"{said}; nothing else that is measured differs."


def _time(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1000:.0f} ms"


def _load(attempt: AttemptState, watched: Watched, track: Track) -> Load:
    node = next(
        (at for at in range(len(attempt.seats)) if track.rank in ranks_of(at, attempt.gpus_per_node)), None
    )
    reading: Telemetry | None = (
        watched.readings.get(attempt.seats[node].replica_id) if node is not None else None
    )
    if reading is None or node is None:
        return Load()
    local = track.rank - ranks_of(node, attempt.gpus_per_node)[0]
    gpu = next((one for one in reading.gpus if one.index == local), None) if attempt.gpus_per_node else None
    return Load(
        clock_mhz=gpu.clock_mhz if gpu else None,
        temperature_c=gpu.temperature_c if gpu else None,
        throttled=gpu.throttled if gpu else (),
        machine_cpu_percent=reading.cpu_percent,
        sent_bytes_per_s=_sent_per_s(track),
    )


def _sent_per_s(track: Track) -> float | None:
    """Over its TCP connections, both ways."""
    known = [sample for sample in track.samples if sample.network_bytes is not None]
    if len(known) < 2 or known[-1].at_s <= known[0].at_s:
        return None
    moved = (known[-1].network_bytes or 0) - (known[0].network_bytes or 0)
    return max(0.0, moved / (known[-1].at_s - known[0].at_s))
