"""What torch itself says of this machine: versions, architectures, and whether each GPU really computes.

Runs in a forked child of `forked.py`, because it initialises CUDA, which no process survives a fork with.
Standard library and torch only. The keys are those of `coordinator.core.protocol.Facts`.
"""

from __future__ import annotations

from typing import Any


def facts() -> dict[str, Any]:
    """The facts; what could not be learned is left out and named in `problems`."""
    import torch

    # What a broken driver raises is not written down anywhere: each question is asked by itself, and whatever one of them
    # raises is a problem to report, which must not cost the answers to the others.
    problems: list[str] = []
    known: dict[str, Any] = {
        "packages": {"torch": torch.__version__},
        "cuda": torch.version.cuda,
        "torch_ready": True,
        "torch_asked": True,
        "arch_list": list(torch.cuda.get_arch_list()) if torch.version.cuda else [],
        "gpus": [],
    }
    if torch.version.cuda is None:
        return known
    try:
        known["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    except Exception as problem:
        problems.append(f"NCCL's version is unknown: {_words(problem)}")
    for index in range(_count(torch, problems)):
        known["gpus"].append(_gpu(torch, index, problems))
    known["problems"] = problems
    return known


def _count(torch: Any, problems: list[str]) -> int:
    try:
        return int(torch.cuda.device_count())
    except Exception as problem:
        problems.append(f"CUDA cannot count its devices: {_words(problem)}")
        return 0


def _gpu(torch: Any, index: int, problems: list[str]) -> dict[str, Any]:
    gpu: dict[str, Any] = {"index": index, "name": "unknown"}
    try:
        properties = torch.cuda.get_device_properties(index)
        gpu["name"] = properties.name
        gpu["memory_bytes"] = int(properties.total_memory)
        gpu["compute_capability"] = f"{properties.major}.{properties.minor}"
        uuid = getattr(properties, "uuid", None)
        gpu["uuid"] = None if uuid is None else f"GPU-{uuid}"
        gpu["free_bytes"] = int(torch.cuda.mem_get_info(index)[0])
    except Exception as problem:
        problems.append(f"GPU {index} cannot be asked: {_words(problem)}")
        return gpu
    try:
        _compute(torch, index)
    except Exception as problem:
        problems.append(f"GPU {index} ({gpu['name']}) cannot run a kernel: {_words(problem)}")
    return gpu


def _compute(torch: Any, index: int) -> None:
    """A matrix product whose result is known: it needs a kernel built for this GPU, and working memory."""
    device = torch.device("cuda", index)
    ones = torch.ones(64, 64, device=device)
    got = (ones @ ones + 1).sum().item()
    if got != 64 * 64 * 65:
        raise ArithmeticError(f"a sum that is {64 * 64 * 65} came out as {got}")


def _words(problem: BaseException) -> str:
    return " ".join(str(problem).split("\n", 1)[0].split())[:300] or type(problem).__name__
