"""`rankcall preflight` on a real deployment: several addresses, IPv6 alone, a link that is cut; nothing is left behind."""

from __future__ import annotations

import importlib.metadata
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch_at_hand
from fleet import Fleet, Replica, fleet
from namespaces import Host, MakeHosts

pytestmark = [pytest.mark.hosts, pytest.mark.timeout(600)]

# Nothing here is about these: torch is imported in minutes where the machine is busy.
GENEROUS = ("--deadline", "match=300", "--deadline", "collective=300")


def with_torch(folder: Path) -> dict[str, str]:
    return {"RANKCALL_PYTHON": str(torch_at_hand.interpreter(folder / "torch-at-hand"))}


def preflight(replica: Replica, *arguments: str) -> tuple[int, dict[str, Any]]:
    ran = replica.run("preflight", "--json", *GENEROUS, *arguments)
    assert ran.out, ran.err
    return ran.code, json.loads(ran.out)


def seats(view: dict[str, Any]) -> list[tuple[str, str]]:
    return [(end["address"], end["interface"]) for end in view["grid"]["replicas"]]


def second_interface_nowhere(host: Host) -> None:
    """It is up, has an address and a route, and nothing is behind it."""
    host.ip("link", "add", "eth1", "type", "veth", "peer", "name", "nowhere")
    host.ip("link", "set", "nowhere", "up")
    host.ip("addr", "add", "10.99.1.1/16", "dev", "eth1")
    host.ip("link", "set", "eth1", "up")


def joined(one: Host, other: Host) -> tuple[str, str]:
    """A network of two: each gets an interface eth1 that leads to the other only; their addresses."""
    one.ip("link", "add", "eth1", "type", "veth", "peer", "name", "eth1", "netns", other.namespace)
    for host, address in ((one, "10.88.0.1"), (other, "10.88.0.2")):
        host.ip("addr", "add", f"{address}/30", "dev", "eth1")
        host.ip("link", "set", "eth1", "up")
    return "10.88.0.1", "10.88.0.2"


def test_the_address_that_all_peers_reach_is_used_though_another_leads_to_the_coordinator(
    hosts: MakeHosts, tmp_path: Path
) -> None:
    """Between the first two is a network of their own, by which the second reaches the coordinator."""
    made = hosts(3)
    to_master, own = joined(made[0], made[1])
    with fleet(made, tmp_path, more=with_torch(tmp_path)) as three:
        peers = ",".join((to_master, *(host.address for host in made[1:])))
        three.replicas[1].environment["RANKCALL_PEERS"] = peers
        three.up()
        three.ready(*(host.name for host in made))
        (second,) = (view for view in three.page().items if view.hostname == "host-2")
        assert second.addresses[0] == own
        code, view = preflight(three.master)
        assert code == 0, view["verdict"]
        assert sorted(seats(view)) == [(host.address, "eth0") for host in made]
        (note,) = (found for found in view["findings"] if found["code"] == "NET033")
        assert note["severity"] == "note" and own in str(note["evidence"])
        assert all(link["state"] == "ok" for link in view["grid"]["links"])
        _a_cut_link_is_named_by_all_stages(three)


def _a_cut_link_is_named_by_all_stages(three: Fleet) -> None:
    one, other = three.replicas[1].host, three.replicas[2].host
    other.drop_from(one)
    ran = three.master.run("preflight", *GENEROUS)
    assert ran.code == 4, ran.err
    assert (
        "NET005" in ran.err and "from rank 2 (host-2" in ran.err and "do not reach rank 1 (host-3" in ran.err
    )
    assert "✗ timed_out" in ran.out
    other.clear()
    assert three.master.run("preflight", *GENEROUS).code == 0


@pytest.mark.long
def test_a_second_interface_with_a_wrong_route_is_a_note_about_its_replica(
    hosts: MakeHosts, tmp_path: Path
) -> None:
    made = hosts(2)
    second_interface_nowhere(made[1])
    with fleet(made, tmp_path) as pair:
        pair.up()
        pair.ready(*(host.name for host in made))
        code, view = preflight(pair.replicas[1])
        assert code == 0, view["verdict"]
        assert seats(view) == [(host.address, "eth0") for host in made]
        (note,) = (found for found in view["findings"] if found["code"] == "NET033")
        named = view["grid"]["replicas"][1]
        assert note["replica"] == named["replica_id"] and named["hostname"] == "host-2"
        assert "10.99.1.1 on eth1 (0 of 1 peers)" in note["message"]


_ANOTHER_VERSION = """
import importlib.util, sys
class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "torch.version":
            return importlib.util.spec_from_file_location(name, {version!r})
sys.meta_path.insert(0, Finder)
"""


def python_with_another_torch(folder: Path) -> Path:
    """This interpreter with the real torch, which takes itself for release 2.11.0."""
    folder.mkdir()
    files = importlib.metadata.files("torch") or ()
    (source,) = (file for file in files if str(file) == "torch/version.py")
    version = folder / "version.py"
    version.write_text(re.sub(r"'2\.\d+\.\d+[^']*'", "'2.11.0'", source.read_text()))
    (folder / "sitecustomize.py").write_text(_ANOTHER_VERSION.format(version=str(version)))
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={folder}:$PYTHONPATH exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return python


@pytest.mark.long  # test_match.py has it without hosts
def test_another_torch_on_one_replica_is_named_before_anything_is_tried(
    hosts: MakeHosts, tmp_path: Path
) -> None:
    made = hosts(3)
    with fleet(made, tmp_path) as three:
        python = python_with_another_torch(tmp_path / "another")
        three.replicas[2].environment["RANKCALL_PYTHON"] = str(python)
        three.up()
        three.ready(*(host.name for host in made))
        code, view = preflight(three.master)
        assert code == 4
        (error,) = (found for found in view["findings"] if found["severity"] == "error")
        named = {seat["replica_id"]: seat["hostname"] for seat in view["attempt"]["members"]}
        assert (error["code"], error["stage"], named[error["replica"]]) == ("ENV001", "match", "host-3")
        assert "2.11.0" in error["message"]
        assert [stage["state"] for stage in view["attempt"]["stages"][2:]] == ["waiting", "waiting"]
        code, view = preflight(three.master, "--allow", "ENV001")
        assert code == 0, view["verdict"]


def test_ipv6_alone_is_enough(hosts: MakeHosts, tmp_path: Path) -> None:
    made = hosts(2, ipv4=False, ipv6=True)
    peers = ",".join(f"[{host.address6}]" for host in made)
    with fleet(made, tmp_path, more={"RANKCALL_PEERS": peers, **with_torch(tmp_path)}) as pair:
        pair.up()
        pair.eventually(lambda: all(replica.registered for replica in pair.replicas), "registered")
        code, view = preflight(pair.master)
        assert code == 0, (view["verdict"], pair.said)
        assert seats(view) == [(host.address6, "eth0") for host in made]
        assert view["attempt"]["stages"][3]["summary"].startswith("gloo up")
