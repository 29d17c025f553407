"""What the machine says about a hang: the kernel's messages, who holds the GPUs, and what NCCL's own health service knows.

Each is there where the container may read it, and leaves a line saying why where it is not. Called by `forensics.py`. Blocks.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path

from agent import gpus

_KERNEL = Path("/dev/kmsg")
# What a hang can come of: GPU faults (Xid), memory, disks, links, file systems that stopped answering.
_TELLING = re.compile(
    r"Xid|NVRM|nvidia|[Oo]ut of memory|oom|Killed process|blocked for more than|I/O error|link (?:is )?(?:down|up)|"
    r"nfs: server|hung_task|segfault|Hardware Error|mce:",
)
_KERNEL_LINES = 60
_KERNEL_BYTES = 8192  # the longest record there is

_RAS = ("localhost", 28028)  # NCCL_RAS_ADDR's default; from NCCL 2.24 on
_RAS_BYTES = 256 << 10


def kernel_messages(device: Path = _KERNEL) -> Iterator[str]:
    """The last telling ones, with seconds since the machine started."""
    found: list[str] = []
    try:
        handle = os.open(device, os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        yield f"(the kernel's messages cannot be read here: {error.strerror})"
        return
    try:
        while True:
            try:
                record = os.read(handle, _KERNEL_BYTES).decode("utf-8", "replace")
            except BrokenPipeError:  # older ones were overwritten meanwhile
                continue
            except OSError:  # the end, or not permitted
                break
            if not record:
                break
            head, _, text = record.partition(";")
            line = text.split("\n", 1)[0]
            if _TELLING.search(line):
                with contextlib.suppress(ValueError, IndexError):
                    found.append(f"[{int(head.split(',')[2]) / 1e6:.3f}] {line}")
    finally:
        os.close(handle)
    yield from found[-_KERNEL_LINES:] or ["(the kernel has said nothing that explains a hang)"]


def gpu_processes(environment: Mapping[str, str]) -> Iterator[str]:
    """Each GPU with its load and the processes that hold memory of it."""
    found, _ = gpus.facts(environment, [])
    loads = {load.index: load for load in gpus.Gauges(environment).read()} if found else {}
    for gpu in found:
        load = loads.get(gpu.index)
        said = f"GPU {gpu.index} ({gpu.name}, {gpu.uuid})"
        if load is not None:
            said += f": {load.utilization} % busy, {load.temperature_c} °C"
        yield said
        for holder in gpu.holders:
            held = "?" if holder.memory_bytes is None else f"{holder.memory_bytes / 1e9:.2f} GB"
            yield f"  pid {holder.pid} {holder.name or '(not of this container)'}: {held}"
    if not found:
        yield "(no GPU is visible here)"


def nccl_health(timeout_s: float, address: tuple[str, int] = _RAS) -> Iterator[str]:
    """What NCCL's RAS service says of all ranks, where this NCCL has one."""
    try:
        with socket.create_connection(address, timeout=min(1.0, timeout_s)) as connection:
            connection.settimeout(timeout_s)
            connection.sendall(b"verbose status\n")
            answer = b""
            while len(answer) < _RAS_BYTES:
                piece = connection.recv(65536)
                if not piece:
                    break
                answer += piece
    except OSError as error:
        why = "timed out" if isinstance(error, TimeoutError) else (error.strerror or str(error))
        yield f"(NCCL's RAS service does not answer: {why}; it is there from NCCL 2.24 on)"
        return
    yield from answer.decode("utf-8", "replace").splitlines()
