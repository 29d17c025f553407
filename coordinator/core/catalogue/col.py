"""`COL…`: codes about the collective check."""

from __future__ import annotations

from coordinator.core.catalogue.entry import Entry
from coordinator.core.protocol import Severity, Stage


def _entry(code: str, title: str, severity: Severity, what: str, why: str, fix: str) -> Entry:
    return Entry(
        code=code, title=title, severity=severity, what=what, why=why, fix=fix, stage=Stage.COLLECTIVE
    )


ENTRIES: tuple[Entry, ...] = (
    _entry(
        "COL001",
        "torch cannot be used on a replica",
        "error",
        "The probe could not import torch, or torch has no torch.distributed.",
        "Training runs in the same interpreter and would fail the same way.",
        "Install the training stack there (`pip install 'rankcall[train]'`), or point RANKCALL_PYTHON at its interpreter.",
    ),
    _entry(
        "COL002",
        "The rendezvous port is not reachable",
        "error",
        "The replica could not connect to the master's rendezvous port, though tcp to other ports works.",
        "A firewall lets some ports pass and not this one, or rank 0 never listened.",
        "Allow all TCP ports between the replicas: training uses this port and many ephemeral ones.",
    ),
    _entry(
        "COL003",
        "A replica did not come to the rendezvous",
        "error",
        "The others waited for it in the collective check until the deadline.",
        "Its process hangs or was never started.",
        "Look at that replica: its agent, its load, and what it says about the check.",
    ),
    _entry(
        "COL004",
        "The process group did not form",
        "error",
        "All replicas met at the rendezvous, but the connections among them did not come about.",
        "The library opens connections on ephemeral ports, on the interface named by "
        "GLOO_SOCKET_IFNAME or NCCL_SOCKET_IFNAME; one of them is blocked or leads nowhere.",
        "Allow all TCP ports between the replicas, and check the interface each of them uses.",
    ),
    _entry(
        "COL005",
        "A collective did not finish",
        "error",
        "The process group formed, then an operation failed or stood still.",
        "A link that loses large packets, a stopped process or a failing GPU does this.",
        "See the evidence for where each replica stood.",
    ),
    _entry(
        "COL006",
        "A collective gave a wrong value",
        "error",
        "The sum that came back is not the sum of what went in.",
        "Data is damaged on the way or in memory; training would silently diverge.",
        "Replace this replica, and check its GPU's memory (`nvidia-smi -q`, ECC errors, Xid in the kernel log).",
    ),
    _entry(
        "COL007",
        "The probe's process died",
        "error",
        "The process that took part in the check was ended by a signal or left by itself.",
        "Out of memory (SIGKILL), a broken library (SIGSEGV, SIGILL) or an incompatible driver does this.",
        "See the log in the evidence; give the container more memory if it was SIGKILL.",
    ),
    _entry(
        "COL008",
        "A replica did not report its collective check",
        "error",
        "No result came within the stage's deadline.",
        "Its agent or its probe process is stopped, overloaded, or has lost the coordinator.",
        "Look at that replica: is it still running, is its CPU saturated?",
    ),
    _entry(
        "COL009",
        "The rendezvous port was not usable on the master",
        "error",
        "Rank 0 could not listen on the agreed port, or the port was still held after the check.",
        "Another process took it between the tcp check and this one.",
        "Run it again: another port will be agreed. The evidence names the port.",
    ),
    _entry(
        "COL010",
        "A straggler",
        "warning",
        "The check passed, but this replica was far slower than the others.",
        "Collectives go at the pace of the slowest replica.",
        "Look at its load and network, or replace it.",
    ),
    _entry(
        "COL020",
        "Isolation: this replica is the cause",
        "error",
        "Groups without it pass, and it fails with peers that are proven good.",
        "Everything else was shown to work without it.",
        "Replace this replica; its peers are good.",
    ),
    _entry(
        "COL021",
        "Isolation: this link is the cause",
        "error",
        "Two replicas fail together, while each passes with others, or while no others are left to tell them apart.",
        "The fault lies between the two.",
        "Replace one of the two, or look at the network between them.",
    ),
    _entry(
        "COL022",
        "Isolation: everybody fails",
        "error",
        "No pair of replicas passes.",
        "When all fail alike the cause is the configuration: a firewall, the interface, the library.",
        "Allow all TCP ports between the replicas; see the evidence for the error they share.",
    ),
    _entry(
        "COL023",
        "Isolation: not reproducible",
        "warning",
        "The check failed once and passed when it was repeated.",
        "A transient fault. There is no evidence against any replica or link.",
        "Go on; if it comes again the findings of both will tell.",
    ),
    _entry(
        "COL024",
        "Isolation: not finished",
        "error",
        "The rounds ran out of time; these are the replicas still suspected.",
        "More than one fault at once, or rounds that each needed their whole deadline.",
        "Replace the suspects, or run `rankcall preflight` with a longer deadline.",
    ),
)
