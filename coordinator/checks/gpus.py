"""What a GPU can do, by its name: for a config that is judged where no replica has said what it has (`--gpu NAME`)."""

from __future__ import annotations

import re
from dataclasses import dataclass

from coordinator.checks.files import nearest

Capability = tuple[int, int]

# (compute capability, names to show, pattern); the more special first. Source: NVIDIA's table of CUDA GPUs.
_KINDS: tuple[tuple[Capability, tuple[str, ...], str], ...] = (
    ((10, 3), ("B300", "GB300"), r"G?B300"),
    ((10, 0), ("B200", "GB200", "B100"), r"G?B[12]00"),
    ((12, 1), ("DGX Spark",), r"GB10|SPARK"),
    ((9, 0), ("H200", "H100", "GH200", "H800", "H20"), r"G?H[128]00|H20"),
    ((12, 0), ("RTX PRO 6000 Blackwell",), r"RTX PRO [2-6]\d00|BLACKWELL"),
    ((8, 9), ("RTX 6000 Ada", "RTX 4000 Ada"), r"RTX [2-6]\d00 (?:SFF )?ADA"),
    ((12, 0), ("RTX 5090", "RTX 5080", "RTX 5070", "RTX 5060"), r"(?:RTX )?50[5-9]0"),
    ((8, 9), ("RTX 4090", "RTX 4080", "RTX 4070", "RTX 4060"), r"(?:RTX )?40[5-9]0"),
    ((8, 9), ("L40S", "L40", "L4", "L20"), r"L40|L20|L4|L2"),
    ((8, 0), ("A100", "A800", "A30"), r"A[18]00|A30"),
    ((8, 6), ("A10", "A10G", "A16", "A40", "A2"), r"A10|A16|A40|A2"),
    ((8, 6), ("RTX A6000", "RTX A5000", "RTX A4000"), r"(?:RTX )?A[2-6][05]00"),
    ((8, 6), ("RTX 3090", "RTX 3080", "RTX 3070", "RTX 3060"), r"(?:RTX )?30[5-9]0"),
    ((8, 7), ("Jetson Orin",), r"ORIN"),
    ((7, 5), ("Tesla T4",), r"T4|T[46]00|T1000"),
    ((7, 5), ("RTX 2080", "RTX 2070", "RTX 2060"), r"(?:RTX )?20[5-8]0"),
    ((7, 5), ("Quadro RTX 8000", "Quadro RTX 6000", "TITAN RTX"), r"RTX [34568]000|TITAN RTX"),
    ((7, 5), ("GTX 1660", "GTX 1650"), r"(?:GTX )?16[3-6]0"),
    ((7, 0), ("Tesla V100", "TITAN V"), r"G?V100|TITAN V"),
    ((6, 0), ("Tesla P100",), r"G?P100"),
    ((6, 1), ("GTX 1080", "GTX 1070", "Tesla P40", "Tesla P4"), r"(?:GTX )?10[3-8]0|P40|P4|TITAN XP?"),
    ((5, 2), ("Tesla M40", "Tesla M60"), r"M40|M60"),
    ((3, 7), ("Tesla K80",), r"K80"),
)  # fmt: skip
_PATTERNS = tuple((capability, re.compile(rf"(?<![A-Z0-9])(?:{p})(?![0-9])")) for capability, _, p in _KINDS)
NAMES = tuple(name for _, names, _ in _KINDS for name in names)
_WRITTEN = re.compile(r"(?:SM|COMPUTE) ?(\d{1,2})(\d)[A-Z]?|(\d{1,2})\.(\d)")


@dataclass(frozen=True)
class Gpu:
    """The GPU that a job is for, as the user called it."""

    name: str
    capability: Capability


class UnknownGpu(ValueError):
    """A name that stands for no GPU known here; `near` is the one that was meant, where one is near."""

    def __init__(self, name: str) -> None:
        super().__init__(f"no GPU is known by the name {name!r}")
        self.near = nearest(name, NAMES, cutoff=0.6)


def gpu_of(name: str) -> Gpu:
    """
    Raises:
        UnknownGpu: for a name that says nothing.
    """
    capability = capability_of(name)
    if capability is None:
        raise UnknownGpu(name)
    return Gpu(name, capability)


def capability_of(name: str) -> Capability | None:
    """The compute capability of a GPU by its name (`NVIDIA GeForce RTX 5090`) or as written (`sm_90`, `8.6`); None where
    unknown."""
    plain = re.sub(r"[^A-Z0-9.]+", " ", name.upper()).strip()
    plain = re.sub(r"\b(RTX|GTX)(?=[0-9])", r"\1 ", plain)
    written = _WRITTEN.fullmatch(plain)
    if written is not None:
        major, minor = (part for part in written.groups() if part is not None)
        return int(major), int(minor)
    return next((capability for capability, pattern in _PATTERNS if pattern.search(plain)), None)
