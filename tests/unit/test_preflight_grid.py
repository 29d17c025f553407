"""The grid of links: every ordered pair once, faults of each direction, the worst first, and as text on a terminal."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.attempt import AttemptState, Round, Seat, StageRecord
from coordinator.cli.linkgrid import write_grid
from coordinator.core.protocol import Address, LinkResult, Stage, TcpResult
from coordinator.preflight.grid import grid


def attempt(count: int, *rounds: Round) -> AttemptState:
    seats = tuple(
        Seat(
            replica_id=f"r-{rank}",
            rank=rank,
            hostname=f"host-{rank}",
            address=f"10.0.0.{rank}",
            interface="eth0",
            offers=(
                Address(address=f"10.0.0.{rank}", interface="eth0"),
                Address(address=f"10.9.0.{rank}", interface="eth1"),
            ),
        )
        for rank in range(count)
    )
    return AttemptState(
        id="j-1",
        job_id="j",
        number=1,
        created_at=1.0,
        seats=seats,
        stages=(StageRecord(stage=Stage.TCP, state="failed"),),
        rounds=rounds,
    )


def seen(target: int, *, net: str = "10.0.0", **values: object) -> LinkResult:
    good = {"ok": True, "rtt_s": 0.001, "bytes_per_s": 1e9}
    return LinkResult.model_validate(
        {"replica_id": f"r-{target}", "address": f"{net}.{target}", **good, **values}
    )


def failed(target: int, fault: str, **values: object) -> LinkResult:
    return seen(target, ok=False, fault=fault, error=fault, rtt_s=None, bytes_per_s=None, **values)


def healthy(count: int) -> dict[str, list[LinkResult]]:
    return {f"r-{at}": [seen(to) for to in range(count) if to != at] for at in range(count)}


def results(links: dict[str, list[LinkResult]]) -> dict[str, TcpResult]:
    return {replica: TcpResult(links=tuple(listed)) for replica, listed in links.items()}


@given(st.integers(2, 12), st.data())
def test_every_ordered_pair_has_one_cell_whatever_was_reported(count: int, data: st.DataObject) -> None:
    links = healthy(count)
    for listed in links.values():
        gone = data.draw(st.integers(0, len(listed)))
        del listed[:gone]
    made = grid(attempt(count), results(links))
    pairs = [(link.source, link.target) for link in made.links]
    assert pairs == [(one, other) for one in range(count) for other in range(count) if one != other]
    assert made.good + made.failed + made.untested == len(pairs)
    assert made.good == sum(len(listed) for listed in links.values())


def test_before_anything_was_reported_there_are_no_links() -> None:
    made = grid(attempt(3), {})
    assert made.links == () and [end.address for end in made.replicas] == ["10.0.0.0", "10.0.0.1", "10.0.0.2"]


def test_only_the_address_in_use_counts_and_the_other_is_told_of() -> None:
    links = healthy(2)
    links["r-0"].append(seen(1, net="10.9.0", ok=False, fault="timed_out", rtt_s=None))
    made = grid(attempt(2), results(links))
    assert made.failed == 0
    used, idle = made.replicas[1].offers
    assert (used.used, used.reached_by, used.tried_by) == (True, 1, 1)
    assert (idle.used, idle.reached_by, idle.tried_by) == (False, 0, 1)


def test_the_direction_that_is_at_fault_is_told_from_the_one_that_lost_its_answers() -> None:
    links = healthy(3)
    links["r-1"] = [seen(0), failed(2, "timed_out")]
    links["r-2"] = [seen(0), failed(1, "timed_out", half_open=True)]
    made = {(link.source, link.target): link for link in grid(attempt(3), results(links)).links}
    assert made[1, 2].state == made[2, 1].state == "failed"
    assert [made[1, 2].at_fault, made[2, 1].at_fault] == [False, True]


def test_the_worst_come_first_failed_then_untested_then_shaky_then_slow() -> None:
    links = healthy(4)
    links["r-0"] = [seen(1, rtt_s=0.2), seen(2, tries=2), failed(3, "refused")]
    links["r-1"] = [seen(0), failed(2, "untried"), seen(3, bytes_per_s=1e6)]
    made = grid(attempt(4), results(links), worst=5)
    assert [(link.source, link.target) for link in made.links] == [(0, 3), (1, 2), (0, 2), (1, 3), (0, 1)]
    assert (made.good, made.failed, made.untested) == (10, 1, 1)


def test_rounds_are_told_by_rank() -> None:
    ids = ("r-0", "r-1", "r-2")
    within = Round(
        task_id="w", groups=tuple((one,) for one in ids), started_at=1.0, passed=(True,) * 3, within=True
    )
    everyone = Round(task_id="c", groups=(ids,), started_at=2.0, passed=(False,))
    halves = Round(task_id="d", groups=(("r-0", "r-2"),), started_at=3.0)
    kinds = [
        (one.kind, one.groups[0].ranks, one.groups[0].passed)
        for one in grid(attempt(3, within, everyone, halves), {}).rounds
    ]
    assert kinds == [("within", (0,), True), ("all", (0, 1, 2), False), ("groups", (0, 2), None)]


def test_up_to_sixteen_replicas_are_a_matrix_on_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    links = healthy(3)
    links["r-0"] = [failed(1, "refused"), seen(2)]
    ids = ("r-0", "r-1", "r-2")
    halves = Round(task_id="d", groups=(ids[:2], ids[2:]), started_at=3.0, passed=(True, False))
    write_grid(grid(attempt(3, halves), results(links)))
    lines = capsys.readouterr().out.splitlines()
    row = next(line for line in lines if line.startswith("0") and "refused" in line)
    assert row.split() == ["0", "·", "✗", "refused", "1.0", "ms,", "1.0", "GB/s"]
    assert "round 1: groups: {0-1} passed, {2} FAILED" in lines


def test_more_are_a_list_with_the_worst_first(capsys: pytest.CaptureFixture[str]) -> None:
    links = healthy(20)
    links["r-7"][3] = failed(3, "timed_out")
    write_grid(grid(attempt(20), results(links)))
    lines = capsys.readouterr().out.splitlines()
    head = next(at for at, line in enumerate(lines) if line.startswith("FROM"))
    assert lines[head + 1].split()[:2] == ["7", "3"] and "timed_out" in lines[head + 1]
    assert lines[-1] == "379 of 380 links are good; 348 more than these are not shown"
