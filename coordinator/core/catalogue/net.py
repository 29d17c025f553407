"""`NET…`: codes about addresses, tcp links and ports."""

from __future__ import annotations

from coordinator.core.catalogue.entry import Entry
from coordinator.core.protocol import Severity, Stage

_OPEN_ALL = (
    "Allow all TCP ports between the replicas, in both directions: NCCL and gloo use ephemeral ports, "
    "so opening 29500 alone is not enough."
)
_NO_MESH = (
    'Switch the sidecar off for these containers (Kubernetes: annotation sidecar.istio.io/inject: "false"; '
    "gcube: isIstioProxy false), or exclude all ports from its interception."
)


def _entry(code: str, title: str, severity: Severity, what: str, why: str, fix: str) -> Entry:
    return Entry(code=code, title=title, severity=severity, what=what, why=why, fix=fix, stage=Stage.TCP)


ENTRIES: tuple[Entry, ...] = (
    _entry(
        "NET001",
        "A replica is cut off",
        "error",
        "No other replica reaches this one, and it reaches none, while the others reach each other.",
        "Training would hang in its first collective, because every rank talks to every other.",
        "Look at this replica's network (security group, node, overlay), or replace it. " + _OPEN_ALL,
    ),
    _entry(
        "NET002",
        "Nobody reaches a replica",
        "error",
        "This replica reaches its peers, but none of them reaches it.",
        "Collectives open connections in both directions; one way is not enough.",
        "Look for a firewall in front of this replica, or an address that its peers cannot route to. "
        + _OPEN_ALL,
    ),
    _entry(
        "NET003",
        "A replica reaches nobody",
        "error",
        "The peers reach this replica, but it reaches none of them.",
        "Collectives open connections in both directions; one way is not enough.",
        "Look for a rule on outgoing traffic or a wrong route in this replica. " + _OPEN_ALL,
    ),
    _entry(
        "NET004",
        "A link is dead",
        "error",
        "Two replicas do not reach each other, while both reach others (or there are no others to compare).",
        "A collective among all replicas uses this link and would hang.",
        "Which of the two is at fault cannot be told from here: look at both, or replace one. " + _OPEN_ALL,
    ),
    _entry(
        "NET005",
        "A link works in one direction only",
        "error",
        "One replica reaches another, but not the other way round.",
        "Collectives open connections in both directions; the missing one hangs.",
        "Look for a one-sided firewall rule or an asymmetric route between the two.",
    ),
    _entry(
        "NET006",
        "No replica reaches any other",
        "error",
        "Every link failed.",
        "When all links fail the cause is the configuration, not a replica.",
        "Check that the replicas share a network at all. " + _OPEN_ALL,
    ),
    _entry(
        "NET007",
        "The replicas fall into groups that do not reach each other",
        "error",
        "Inside each group all is well; between the groups no link works.",
        "Usually the groups run in different networks, zones or clusters.",
        "Start all replicas in one network, or route between the two.",
    ),
    _entry(
        "NET010",
        "Something accepts connections and says nothing",
        "error",
        "The connection was accepted, but the echo that a replica sends never came.",
        "A transparent proxy or service-mesh sidecar (Envoy, Istio, Linkerd) accepts for every address. "
        "NCCL and gloo then connect, and hang in their first collective.",
        _NO_MESH,
    ),
    _entry(
        "NET011",
        "Large packets are lost",
        "error",
        "A small message is echoed, a large payload stalls.",
        "An MTU black hole: a device on the way carries smaller packets than this interface sends, and the "
        "message that would say so is filtered. Rendezvous passes, training hangs.",
        "Lower the interface's MTU (`ip link set dev eth0 mtu 1400`), or let ICMP 'fragmentation needed' through.",
    ),
    _entry(
        "NET012",
        "Another replica answers at this address",
        "error",
        "The address of one replica leads to another one.",
        "Two replicas share an address, or both stand behind one (NAT, a load balancer).",
        "Set RANKCALL_ADDRESS on each replica to an address that is its own.",
    ),
    _entry(
        "NET013",
        "Something else answers",
        "error",
        "What answered is not rankcall's echo, or it changed what was sent.",
        "A proxy that speaks HTTP, or another program on that port, sits between the replicas.",
        _NO_MESH,
    ),
    _entry(
        "NET014",
        "The connection is closed without an answer",
        "error",
        "The connection was accepted and then closed or reset before any echo.",
        "Proxies do so when they cannot reach what is behind them; so does a firewall that resets.",
        "Look for a proxy or sidecar between the replicas. " + _NO_MESH,
    ),
    _entry(
        "NET015",
        "A service mesh is present",
        "note",
        "Proxies of a service mesh listen in this replica's network.",
        "They intercept the traffic of training unless its ports are excluded.",
        _NO_MESH,
    ),
    _entry(
        "NET020",
        "The rendezvous port is taken",
        "note",
        "Another process on the master holds the first choice of rendezvous port; the next free one is used.",
        "Two servers cannot listen on one port.",
        "Nothing needs to be done.",
    ),
    _entry(
        "NET021",
        "No rendezvous port is free",
        "error",
        "Every candidate for the rendezvous port is held by another process on the master.",
        "Rank 0 has to listen there for the others to find it.",
        "End the processes named, most likely those of an earlier training.",
    ),
    _entry(
        "NET030",
        "A link is slow",
        "warning",
        "This link carries far less than the others.",
        "Collectives go at the pace of the slowest link.",
        "Look at the two replicas' hosts and network, or replace one of them.",
    ),
    _entry(
        "NET031",
        "A link was unreliable",
        "warning",
        "The first try failed, the second passed.",
        "A link that loses packets makes collectives slow, and hangs the unlucky one.",
        "If it comes again, look at the network between the two.",
    ),
    _entry(
        "NET032",
        "Addresses are translated",
        "note",
        "A peer saw a replica come from another address than its own.",
        "Network address translation sits between them; connections back to that address may fail.",
        "Use a network in which the replicas see each other's own addresses, where there is one.",
    ),
    _entry(
        "NET033",
        "An offered address does not lead to its replica",
        "note",
        "A replica has an address at which its peers do not reach it, and another one that works.",
        "Without the test the launcher might have picked the wrong interface, and training would hang. The "
        "working one is used for the rendezvous, for gloo and for NCCL.",
        "Nothing needs to be done. RANKCALL_ADDRESS names one address to use, where the choice should be yours.",
    ),
    _entry(
        "NET040",
        "A replica did not finish its tcp check",
        "error",
        "No result came within the stage's deadline.",
        "Its agent is stopped, overloaded, or has lost the coordinator.",
        "Look at that replica: is it still running, is its CPU saturated?",
    ),
    _entry(
        "NET041",
        "A replica has no address for its peers",
        "error",
        "The replica offered no address of the family that the others have.",
        "Without an address in common nobody can connect to it.",
        "Give the container a network interface, or name its address in RANKCALL_ADDRESS.",
    ),
)
