"""InfiniBand ports that the training could use: the link is up, and this container may open the device.

A container sees every adapter of its host under /sys; only what also has a device file that opens is its own. RoCE ports
(link layer Ethernet) are left out: whether one reaches its peers from within a container, no file says. Called by `facts.py`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from coordinator.core.protocol import InfinibandPort

_SYS = Path("/sys/class")
_DEVICES = Path("/dev/infiniband")


def ports(sys: Path = _SYS, devices: Path = _DEVICES) -> tuple[InfinibandPort, ...]:
    """The ports, as NCCL_IB_HCA names them."""
    openable = set(_openable(sys / "infiniband_verbs", devices))
    return tuple(
        InfinibandPort(name=f"{port.parent.parent.name}:{port.name}", subnet=_subnet(port))
        for port in sorted((sys / "infiniband").glob("*/ports/*"))
        if port.parent.parent.name in openable
        and _word(port / "link_layer") == "InfiniBand"
        and _word(port / "state").endswith("ACTIVE")
    )


def _openable(verbs: Path, devices: Path) -> Iterator[str]:
    for entry in verbs.glob("uverbs*"):
        if os.access(devices / entry.name, os.R_OK | os.W_OK):
            yield _word(entry / "ibdev")


def _subnet(port: Path) -> str:
    """What is the same on all ports of one fabric: the subnet's prefix, and who manages it."""
    prefix = ":".join(_word(port / "gids" / "0").split(":")[:4])
    return f"{prefix} {_word(port / 'sm_lid')}"


def _word(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""
