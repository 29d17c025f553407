"""Results of the tcp mesh and of the collective, told as findings that name the right one."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from coordinator.core.protocol import CollectiveResult, Finding, LinkResult, Member, TcpResult
from coordinator.preflight.plan import sampled, tcp_targets
from coordinator.preflight.verdict import judge_collective, judge_tcp

Links = Mapping[tuple[int, int], LinkResult]


def members(count: int) -> tuple[Member, ...]:
    return tuple(
        Member(replica_id=f"r-{rank:010d}", rank=rank, address=f"10.0.0.{rank + 1}", name=f"host-{rank}")
        for rank in range(count)
    )


def mesh(
    count: int, change: Callable[[int, int], dict[str, object]] = lambda a, b: {}
) -> dict[str, TcpResult]:
    everyone = members(count)
    return {
        source.replica_id: TcpResult(
            links=tuple(
                LinkResult.model_validate(
                    {
                        "replica_id": target.replica_id,
                        "address": target.address,
                        "ok": True,
                        "rtt_s": 0.001,
                        "bytes_per_s": 1e9,
                        **change(source.rank, target.rank),
                    }
                )
                for target in everyone
                if target is not source
            )
        )
        for source in everyone
    }


def fault(name: str, error: str = "it failed") -> dict[str, object]:
    return {"ok": False, "fault": name, "error": error, "bytes_per_s": None}


def only(findings: tuple[Finding, ...]) -> Finding:
    assert len(findings) == 1, [f"{one.code} {one.message}" for one in findings]
    return findings[0]


def test_a_healthy_mesh_has_no_findings() -> None:
    assert judge_tcp(members(4), mesh(4)) == ()


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("timed_out", "NET001"),
        ("refused", "NET001"),
        ("silent", "NET010"),
        ("closed", "NET014"),
        ("not_echo", "NET013"),
        ("lost_out", "NET011"),
    ],
)
def test_a_replica_whose_links_all_fail_is_named_with_what_it_looks_like(name: str, code: str) -> None:
    found = only(judge_tcp(members(4), mesh(4, lambda a, b: fault(name) if 2 in (a, b) else {})))
    assert (found.code, found.replica, found.severity) == (code, members(4)[2].replica_id, "error")
    assert "rank 2 (host-2, 10.0.0.3)" in found.message
    assert found.hint


def test_one_direction_of_one_link_is_named_as_such() -> None:
    found = only(judge_tcp(members(4), mesh(4, lambda a, b: fault("refused") if (a, b) == (1, 3) else {})))
    assert found.code == "NET005"
    assert found.replica is None
    assert found.message.startswith(
        "packets from rank 1 (host-1, 10.0.0.2) do not reach rank 3 (host-3, 10.0.0.4)"
    )


def test_large_packets_lost_in_one_direction_name_that_direction() -> None:
    def lost(a: int, b: int) -> dict[str, object]:
        return {(1, 2): fault("lost_out"), (2, 1): fault("lost_back")}.get((a, b), {})

    found = only(judge_tcp(members(3), mesh(3, lost)))
    assert found.code == "NET011"
    assert found.evidence["replicas"] == [members(3)[1].replica_id, members(3)[2].replica_id]


def test_a_connect_that_arrives_and_is_never_answered_tells_the_direction() -> None:
    def dropped(a: int, b: int) -> dict[str, object]:
        return {(1, 2): {**fault("timed_out"), "half_open": True}, (2, 1): fault("timed_out")}.get((a, b), {})

    found = only(judge_tcp(members(4), mesh(4, dropped)))
    assert found.code == "NET005"
    assert found.evidence["replicas"] == [members(4)[1].replica_id, members(4)[2].replica_id]


def test_two_replicas_behind_one_address_are_named() -> None:
    other = members(3)[2].replica_id

    def wrong(a: int, b: int) -> dict[str, object]:
        return {**fault("wrong_replica"), "answered_by": other} if (a, b) == (0, 1) else {}

    found = only(judge_tcp(members(3), mesh(3, wrong)))
    assert found.code == "NET012"
    assert "rank 2 (host-2, 10.0.0.3) answers at 10.0.0.2" in found.message


def test_a_replica_that_does_not_report_is_named_and_convicts_nobody_else() -> None:
    results = mesh(4)
    del results[members(4)[3].replica_id]
    found = only(judge_tcp(members(4), results))
    assert (found.code, found.replica) == ("NET040", members(4)[3].replica_id)


def test_a_link_that_was_not_tried_is_no_evidence() -> None:
    found = only(judge_tcp(members(3), mesh(3, lambda a, b: fault("untried") if (a, b) == (0, 1) else {})))
    assert (found.code, found.replica) == ("NET040", members(3)[0].replica_id)


def test_a_sidecar_is_named_where_connections_stay_silent() -> None:
    results = mesh(2, lambda a, b: fault("silent", "the connection was accepted, but no echo came"))
    first = members(2)[0].replica_id
    results[first] = results[first].model_copy(
        update={"sidecars": ("Istio's Envoy listens on 15001 and 15006",)}
    )
    found = only(judge_tcp(members(2), results))
    assert found.code == "NET010"
    assert "Istio" in found.message
    assert "isIstioProxy" in found.hint


def test_a_slow_link_is_a_warning() -> None:
    found = only(
        judge_tcp(members(4), mesh(4, lambda a, b: {"bytes_per_s": 2e6} if (a, b) == (3, 1) else {}))
    )
    assert (found.code, found.severity) == ("NET030", "warning")
    assert "from rank 3" in found.message


def test_an_unreliable_link_is_a_warning() -> None:
    found = only(judge_tcp(members(3), mesh(3, lambda a, b: {"tries": 2} if (a, b) == (0, 1) else {})))
    assert (found.code, found.severity) == ("NET031", "warning")


@pytest.mark.parametrize(("port", "code", "severity"), [(29501, "NET020", "note"), (None, "NET021", "error")])
def test_a_taken_rendezvous_port_names_its_holder(port: int | None, code: str, severity: str) -> None:
    results = mesh(2)
    master = members(2)[0].replica_id
    results[master] = results[master].model_copy(
        update={"rendezvous_port": port, "port_holders": {29500: "python train.py (pid 7)"}}
    )
    found = only(judge_tcp(members(2), results))
    assert (found.code, found.severity, found.replica) == (code, severity, master)
    assert "29500 by python train.py (pid 7)" in found.message


def test_targets_are_all_peers_beginning_with_the_next() -> None:
    everyone = members(4)
    targets = tcp_targets(everyone)
    assert [target.rank for target in targets[everyone[2].replica_id]] == [3, 0, 1]
    assert all(len(peers) == 3 for peers in targets.values())


def test_few_links_are_sampled_among_many_and_each_replica_is_sampled_by_others() -> None:
    assert set(sampled(members(8)).values()) == {None}
    chosen = sampled(members(64))
    times = [name for names in chosen.values() for name in names or ()]
    assert all(name not in (names or ()) for name, names in chosen.items())
    assert {times.count(member.replica_id) for member in members(64)} == {4}


GOOD = CollectiveResult(ok=True, phase="done", values_ok=True, bytes_per_s={1 << 20: 1e9})


def round_of(count: int, **changed: CollectiveResult | None) -> dict[str, CollectiveResult]:
    results: dict[str, CollectiveResult] = {}
    for member in members(count):
        result = changed.get(f"rank{member.rank}", GOOD)
        if result is not None:
            results[member.replica_id] = result
    return results


def bad(phase: str, error: str = "it failed", **more: object) -> CollectiveResult:
    return CollectiveResult.model_validate({"ok": False, "phase": phase, "error": error, **more})


ABSENT = bad("join", "rank 2 did not come to the rendezvous", missing_ranks=(2,))


@pytest.mark.parametrize(
    ("own", "code"),
    [
        (
            bad(
                "import", "torch cannot be imported by python3: ModuleNotFoundError: No module named 'torch'"
            ),
            "COL001",
        ),
        (bad("store", "connect to 10.0.0.1 port 29500: timed out"), "COL002"),
        (bad("join", "the process was ended by SIGKILL"), "COL007"),
        (None, "COL008"),
    ],
)
def test_what_a_replica_says_of_itself_explains_those_that_waited_for_it(
    own: CollectiveResult | None, code: str
) -> None:
    found = only(
        judge_collective(members(4), round_of(4, rank0=ABSENT, rank1=ABSENT, rank2=own, rank3=ABSENT))
    )
    assert (found.code, found.replica) == (code, members(4)[2].replica_id)


def test_a_rendezvous_port_nobody_reaches_speaks_of_the_master() -> None:
    closed = bad("store", "connect to 10.0.0.1 port 29500: timed out")
    waiting = bad("join", "ranks 1, 2 did not come to the rendezvous", missing_ranks=(1, 2))
    found = only(judge_collective(members(3), round_of(3, rank0=waiting, rank1=closed, rank2=closed)))
    assert (found.code, found.replica) == ("COL002", members(3)[0].replica_id)


def test_who_is_cut_off_by_the_end_of_a_broken_round_is_not_called_unreachable() -> None:
    cut = bad(
        "store",
        "[c10d] recvValue failed on SocketImpl(remote=[::ffff:10.0.0.1]:29500): Failed to recv, got 0 bytes.",
    )
    waiting = bad("join", "rank 2 did not come to the rendezvous", missing_ranks=(2,))
    silent = round_of(3, rank0=waiting, rank1=cut)
    del silent[members(3)[2].replica_id]
    found = only(judge_collective(members(3), silent))
    assert (found.code, found.replica) == ("COL008", members(3)[2].replica_id)
    # Where nothing else explains it, something between them accepts and closes.
    found = only(judge_collective(members(3), round_of(3, rank0=waiting, rank1=cut, rank2=cut)))
    assert found.code == "COL002"


def test_of_two_replicas_an_unreachable_port_convicts_neither() -> None:
    closed = bad("store", "connect to 10.0.0.1 port 29500: timed out")
    waiting = bad("join", "rank 1 did not come to the rendezvous", missing_ranks=(1,))
    found = only(judge_collective(members(2), round_of(2, rank0=waiting, rank1=closed)))
    assert (found.code, found.replica) == ("COL002", None)


def test_a_port_that_the_master_cannot_use_is_the_masters() -> None:
    taken = bad("store", "The server socket has failed to listen, name: EADDRINUSE")
    late = bad("store", "connect to 10.0.0.1 port 29500: connection refused")
    found = judge_collective(members(2), round_of(2, rank0=taken, rank1=late))
    assert (found[0].code, found[0].replica) == ("COL009", members(2)[0].replica_id)


def test_where_no_cause_is_plain_each_place_is_told_and_nobody_convicted() -> None:
    stuck = bad("init", "Gloo connectFullMesh failed with timed out connecting: remote=[10.0.0.3]:4711")
    found = only(
        judge_collective(members(3), round_of(3, rank0=stuck, rank1=stuck, rank2=bad("init", "not done")))
    )
    assert (found.code, found.replica) == ("COL004", None)
    assert "the errors name rank 2 (host-2)" in found.message


def test_an_interface_that_is_not_there_is_the_replicas_own_fault_and_the_others_only_lost_it() -> None:
    own = bad("init", "[enforce fail at device.cc:84] ifa != nullptr. Unable to find address for: eth7")
    lost = bad("init", "Failed to recv, got 0 bytes. Connection was likely closed.")
    found = only(judge_collective(members(3), round_of(3, rank0=lost, rank1=own, rank2=lost)))
    assert (found.code, found.replica) == ("COL004", members(3)[1].replica_id)
    assert "interface" in found.message
    assert "ip addr" in found.hint


def test_wrong_values_are_an_error_of_their_own() -> None:
    wrong = bad("all_reduce", "all_reduce of 4 bytes: 1 of 1 values are wrong on rank 0")
    found = only(judge_collective(members(2), round_of(2, rank0=wrong, rank1=wrong)))
    assert (found.code, found.replica) == ("COL006", None)


def test_a_straggler_is_a_warning() -> None:
    slow = GOOD.model_copy(update={"bytes_per_s": {1 << 20: 1e8}})
    found = only(judge_collective(members(4), round_of(4, rank1=slow)))
    assert (found.code, found.severity, found.replica) == ("COL010", "warning", members(4)[1].replica_id)


def test_a_healthy_round_has_no_findings() -> None:
    assert judge_collective(members(4), round_of(4)) == ()
