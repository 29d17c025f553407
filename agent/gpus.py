"""GPUs as NVML sees them: facts and load without torch and without a CUDA context. Only those this container may use.

CUDA_VISIBLE_DEVICES narrows what a training sees and NVML ignores, so it is applied here. A machine without
NVIDIA's driver simply has no GPUs. Called by `facts.py`, `telemetry.py` and for the number at registration.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pynvml

from coordinator.core.protocol import GpuFacts, GpuHolder, GpuTelemetry

_COMMAND_CHARACTERS = 120


def facts(environment: Mapping[str, str], problems: list[str]) -> tuple[tuple[GpuFacts, ...], str | None]:
    """The visible GPUs, and the driver's version; what went wrong is added to `problems`."""
    handles = _handles(environment, problems)
    if not handles:
        return (), _driver()
    return tuple(_facts(index, handle) for index, handle in enumerate(handles)), _driver()


def count(environment: Mapping[str, str]) -> int:
    """How many GPUs a training in this environment would see."""
    return len(_handles(environment, []))


class Gauges:
    """Reads the load of the visible GPUs again and again."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._handles = _handles(environment, [])

    def read(self) -> tuple[GpuTelemetry, ...]:
        return tuple(_telemetry(index, handle) for index, handle in enumerate(self._handles))


def visible(setting: str | None, uuids: Sequence[str]) -> tuple[int, ...]:
    """Indices of the GPUs that CUDA_VISIBLE_DEVICES lets through, in its order.

    As CUDA reads it: None lets all through; entries are indices or beginnings of uuids; the first that names
    no GPU ends the list.
    """
    if setting is None:
        return tuple(range(len(uuids)))
    chosen: list[int] = []
    for entry in (part.strip() for part in setting.split(",")):
        if entry.isdigit() and int(entry) < len(uuids):
            index = int(entry)
        else:
            matches = [
                number
                for number, uuid in enumerate(uuids)
                if entry.startswith("GPU-") and uuid.startswith(entry)
            ]
            if len(matches) != 1:
                break
            index = matches[0]
        if index in chosen:
            break
        chosen.append(index)
    return tuple(chosen)


_started = False


def _start() -> bool:
    global _started  # noqa: PLW0603  NVML itself is one per process
    if not _started:
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError:
            return False
        _started = True
    return True


def _handles(environment: Mapping[str, str], problems: list[str]) -> list[Any]:
    if not _start():
        return []
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        uuids = [_text(pynvml.nvmlDeviceGetUUID(handle)) for handle in handles]
    except pynvml.NVMLError as error:
        problems.append(f"the NVIDIA driver answers, but its GPUs cannot be listed: {error}")
        return []
    return [handles[index] for index in visible(environment.get("CUDA_VISIBLE_DEVICES"), uuids)]


def _driver() -> str | None:
    if not _started:
        return None
    with contextlib.suppress(pynvml.NVMLError):
        return _text(pynvml.nvmlSystemGetDriverVersion())
    return None


def _facts(index: int, handle: Any) -> GpuFacts:
    known: dict[str, Any] = {"index": index, "name": "unknown"}
    with contextlib.suppress(pynvml.NVMLError):
        known["name"] = _text(pynvml.nvmlDeviceGetName(handle))
        known["uuid"] = _text(pynvml.nvmlDeviceGetUUID(handle))
    with contextlib.suppress(pynvml.NVMLError):
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
        known["memory_bytes"], known["free_bytes"] = int(memory.total), int(memory.free)
    with contextlib.suppress(pynvml.NVMLError):
        major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
        known["compute_capability"] = f"{major}.{minor}"
    known["holders"] = _holders(handle)
    return GpuFacts.model_validate(known)


def _holders(handle: Any) -> tuple[GpuHolder, ...]:
    """The processes that hold memory of this GPU, as far as the driver tells a container."""
    found: dict[int, GpuHolder] = {}
    for ask in (pynvml.nvmlDeviceGetComputeRunningProcesses, pynvml.nvmlDeviceGetGraphicsRunningProcesses):
        with contextlib.suppress(pynvml.NVMLError):
            for one in ask(handle):
                used = one.usedGpuMemory
                found[one.pid] = GpuHolder(
                    pid=one.pid, name=_command(one.pid), memory_bytes=None if used is None else int(used)
                )
    return tuple(found.values())


def _command(pid: int) -> str:
    """The command of a process that has a GPU open; "" for any other.

    The driver counts pids of the machine: in a container the same number may be somebody else.
    """
    with contextlib.suppress(OSError):
        own = Path("/proc", str(pid))
        if any(f"{entry.readlink()}".startswith("/dev/nvidia") for entry in (own / "fd").iterdir()):
            return _program((own / "cmdline").read_bytes().decode(errors="replace").split("\0"))
    return ""


def _program(argv: Sequence[str]) -> str:
    """What runs, without its options: they may hold secrets. E.g. "python train.py", "python -m vllm.entrypoints"."""
    words = [Path(argv[0]).name]
    if len(argv) > 2 and argv[1] == "-m":
        words += argv[1:3]
    elif len(argv) > 1 and not argv[1].startswith("-"):
        words.append(argv[1])
    return " ".join(words)[:_COMMAND_CHARACTERS].strip()


def _telemetry(index: int, handle: Any) -> GpuTelemetry:
    known: dict[str, Any] = {"index": index}
    with contextlib.suppress(pynvml.NVMLError):
        known["utilization"] = float(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu)
    with contextlib.suppress(pynvml.NVMLError):
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
        known["memory_used_bytes"], known["memory_total_bytes"] = int(memory.used), int(memory.total)
    with contextlib.suppress(pynvml.NVMLError):
        known["temperature_c"] = float(pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU))
    with contextlib.suppress(pynvml.NVMLError):
        known["clock_mhz"] = float(pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM))
    with contextlib.suppress(pynvml.NVMLError):
        known["throttled"] = throttled(int(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)))
    return GpuTelemetry.model_validate(known)


# nvml.h, nvmlClocksEventReasons: those that mean trouble. Idle clocks and an application's own setting do not, and the
# software power cap (4) is where a healthy training of a large GPU always is.
_THROTTLE = {
    0x08: "hardware slowdown",
    0x20: "heat",
    0x40: "heat, by the hardware",
    0x80: "power brake",
}


def throttled(reasons: int) -> tuple[str, ...]:
    """What NVML's mask of reasons says, in words."""
    return tuple(words for bit, words in _THROTTLE.items() if reasons & bit)


def _text(value: str | bytes) -> str:
    """NVML's bindings have returned bytes in some versions and text in others."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value
