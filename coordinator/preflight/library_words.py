"""What torch, gloo and NCCL print when a collective fails, explained. Called by `collective_verdict.py`.

The patterns are the libraries' own (NCCL 2.18 to 2.28 `misc/socket.cc`, `bootstrap.cc`, `init.cc`; gloo
`transport/tcp`; c10d `socket.cpp`). NCCL says most of this at INFO only, which is why the check runs with it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Known:
    """A line that is understood: what it means, what to do, and whether it is the fault of who printed it."""

    pattern: re.Pattern[str]
    meaning: str
    hint: str
    own: bool


_ALL_PORTS = "Allow all TCP ports between the replicas, in both directions: these are ephemeral ports."

# The most telling first: one failure prints several of these.
_KNOWN = tuple(
    Known(re.compile(pattern, re.IGNORECASE), meaning, hint, own)
    for pattern, meaning, hint, own in (
        (
            r"no kernel image is available",
            "torch has no kernels for this GPU",
            "Use an image whose torch was built for this GPU's compute capability.",
            True,
        ),
        (
            r"dev/shm.*(No space left|failed)|No space left on device.*shm",
            "shared memory is too small for NCCL",
            "Give the container more shared memory (Docker --shm-size=8g, gcube sharedMemory).",
            True,
        ),
        (
            r"CUDA failure.*out of memory|CUDA out of memory",
            "the GPU has no memory left",
            "`nvidia-smi` names the processes that hold it; end those that should not be there.",
            True,
        ),
        (
            r"CUDA driver version is insufficient|forward compatibility was attempted",
            "the driver is too old for this CUDA",
            "Rent a host with a newer driver, or use an image of an older CUDA.",
            True,
        ),
        (
            r"no socket interface found|Unable to find address for|Bootstrap : no",
            "the interface that was named does not exist there or has no address",
            "Compare the interface in the evidence with `ip addr` on that replica.",
            True,
        ),
        (
            r"remote=\[?(127\.0\.0\.1|localhost)\b.*(refused|connectFullMesh)|connectFullMesh.*remote=\[?127\.",
            "a peer advertises its loopback address, because its host name resolves to it",
            "Set GLOO_SOCKET_IFNAME to the interface that leads to the peers, on every replica.",
            False,
        ),
        (
            r"(connect to \S+ (returned|failed)|retrying).*(Connection timed out|No route to host)"
            r"|(Connection timed out|No route to host).*retrying",
            "connections to a peer's ephemeral port get no answer",
            _ALL_PORTS,
            False,
        ),
        (
            r"(connect to \S+ (returned|failed)|retrying).*Connection refused|Connection refused.*retrying",
            "connections to a peer's ephemeral port are refused, again and again",
            _ALL_PORTS,
            False,
        ),
        (
            r"connectFullMesh failed.*timed out|timed out connecting",
            "connections among the ranks get no answer",
            _ALL_PORTS,
            False,
        ),
        (
            r"Message truncated|mismatched.*(collective|size)|NCCL version mismatch",
            "the ranks do not run the same version or the same operation",
            "Start all replicas from one image.",
            False,
        ),
    )
)


def understand(lines: Iterable[str]) -> Known | None:
    """The most telling thing that is known in `lines`; None where nothing is."""
    text = list(lines)
    for known in _KNOWN:
        if any(known.pattern.search(line) for line in text):
            return known
    return None
