"""The kernel's socket table, read for listeners, busy ports and sidecars."""

from __future__ import annotations

from pathlib import Path

from agent.probes.sockets import Socket, first_free, half_open, listening, occupied, sidecars, table

ROWS = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 00000000:733C 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4242 1 0 100 0 0 10 0
   1: 0100007F:1F40 0100007F:C350 01 00000000:00000000 00:00000000 00000000  1000        0 4243 1 0 20 4 30 10 -1
   2: 0100007F:733D 0100007F:C351 06 00000000:00000000 03:00000000 00000000     0        0 0 3 0
"""
ROWS_6 = """\
  sl  local_address                         remote_address                        st  rest
   0: 00000000000000000000000000000000:3A99 00000000000000000000000000000000:0000 0A 00:00 00:00 0  1337  0 4244 1
"""


def test_listeners_of_both_families_are_found(tmp_path: Path) -> None:
    (tmp_path / "tcp").write_text(ROWS)
    (tmp_path / "tcp6").write_text(ROWS_6)
    rows = table(tmp_path)
    assert listening(rows) == {29500, 15001}
    assert rows[0] == Socket(29500, "0A", 0, 4242, "00000000")


def test_an_unreadable_table_is_empty(tmp_path: Path) -> None:
    assert table(tmp_path) == ()


def test_a_port_in_time_wait_is_free_and_one_of_an_outgoing_connection_is_not() -> None:
    rows = (Socket(29501, "06", 0, 0), Socket(50000, "01", 0, 7), Socket(29500, "0A", 0, 8))
    assert set(occupied(rows)) == {50000, 29500}


def test_the_first_free_candidate_is_chosen_and_the_holders_before_it_named() -> None:
    rows = (Socket(29500, "0A", 0, 8),)
    assert first_free((29500, 29501), rows, lambda row: f"inode {row.inode}") == (29501, {29500: "inode 8"})
    assert first_free((29500,), rows, lambda row: "x") == (None, {29500: "x"})


def test_a_mesh_is_known_by_its_ports_and_one_port_alone_is_not_enough() -> None:
    assert sidecars((Socket(15001, "0A", 1337, 1), Socket(15006, "0A", 1337, 2)))
    assert not sidecars((Socket(15001, "0A", 0, 1),))


def test_half_open_connections_name_the_peer_in_both_families() -> None:
    rows = (
        Socket(40000, "03", 0, 0, "02014D0A"),
        Socket(40000, "03", 0, 0, "0000000000000000FFFF000003014D0A"),
        Socket(40000, "03", 0, 0, "010077FD000000000000000001000000"),
        Socket(40000, "01", 0, 0, "04014D0A"),
    )
    assert half_open(rows) == {"10.77.1.2", "10.77.1.3", "fd77:1::1"}
