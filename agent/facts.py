"""What this replica has: GPUs, versions, caches, disks, limits, addresses. Learned without importing torch.

`gather` takes what the operating system, NVML and the packages' metadata say; `merge` lays over it what only
torch knows, once the warm probe has imported it. A fact that cannot be learned stays None and `problems` says
why. Called by `main.py` in a thread, at the start and when torch is ready.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import psutil

from agent import gpus, infiniband, memory_limit
from coordinator.core.protocol import DiskFacts, Facts, GpuFacts

PACKAGES = ("torch", "accelerate", "deepspeed", "axolotl", "transformers", "peft", "datasets", "rankcall")
_CACHE_VARIABLES = (
    "HF_HOME",
    "HF_HUB_CACHE",
    "HUGGINGFACE_HUB_CACHE",
    "HF_DATASETS_CACHE",
    "TRANSFORMERS_CACHE",
)
# What a launcher, a platform or a person left behind and would give a training the wrong rank.
_LEFTOVERS = re.compile(
    r"(?:RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|GROUP_RANK|GROUP_WORLD_SIZE|ROLE_(?:RANK|NAME|WORLD_SIZE)|NODE_RANK|"
    r"MASTER_ADDR|MASTER_PORT|CROSS_RANK|CROSS_SIZE|TORCHELASTIC_.+|PET_.+|ACCELERATE_.+|FSDP_.+|DEEPSPEED_.+|"
    r"DLTS_.+|PMI_.+|OMPI_COMM_WORLD_.+|MV2_COMM_WORLD_.+|MPI_LOCALN?RANK(?:S|ID))"
)
# What a container may say of how its ranks talk to each other; rankcall says only what is not said there.
_CHOSEN = re.compile(r"(?:NCCL|GLOO)_\w{1,64}")
_PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
_LIMITS = {
    "nofile": resource.RLIMIT_NOFILE,
    "memlock": resource.RLIMIT_MEMLOCK,
    "nproc": resource.RLIMIT_NPROC,
}
_VERSIONS_S = 60.0  # another interpreter on a cold network disk takes long to start
_PROGRAM = """
import importlib.metadata, json, platform, sys
found = {}
for name in sys.argv[1:]:
    try:
        found[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pass
print(json.dumps({"python": platform.python_version(), "packages": found}))
"""


def gather(state_dir: Path, python: str, environment: Mapping[str, str]) -> Facts:
    """Everything but what needs torch. Takes milliseconds to seconds, and blocks.

    Args:
        state_dir: where rankcall keeps its state; its disk is among the facts.
        python: the interpreter of the training environment, whose packages count.
        environment: the container's own.
    """
    problems: list[str] = []
    version, packages = _versions(python, problems)
    found, driver = gpus.facts(environment, problems)
    return Facts(
        python=version,
        platform=f"{platform.system()} {platform.machine()}",
        kernel=platform.release(),
        cpu_count=_cpus(),
        memory_bytes=_memory_bytes(),
        packages=packages,
        driver=driver,
        gpus=found,
        disks=tuple(_disks(state_dir, caches(environment))),
        cache_environment={name: environment[name] for name in _CACHE_VARIABLES if environment.get(name)},
        leftovers={name: value for name, value in environment.items() if _LEFTOVERS.fullmatch(name)},
        proxies=_proxies(environment),
        chosen={name: value for name, value in environment.items() if _CHOSEN.fullmatch(name)},
        infiniband=infiniband.ports(),
        limits={name: _soft_limit(which) for name, which in _LIMITS.items()},
        problems=tuple(problems),
    )


def merge(facts: Facts, torch_facts: Mapping[str, Any]) -> Facts:
    """`facts` with what torch said laid over it; packages and problems are joined, GPUs completed by uuid."""
    said = Facts.model_validate(torch_facts)
    keys = set(torch_facts) & set(Facts.model_fields) - {"packages", "problems", "gpus"}
    update: dict[str, Any] = {key: getattr(said, key) for key in keys}
    update["packages"] = {**facts.packages, **said.packages}
    update["problems"] = (*facts.problems, *said.problems)
    if said.gpus:
        update["gpus"] = tuple(_completed(gpu, facts.gpus) for gpu in said.gpus)
    return facts.model_copy(update=update)


def _completed(gpu: GpuFacts, known: Iterable[GpuFacts]) -> GpuFacts:
    """What torch says of a GPU, with what it left out taken from the driver's word on the same one."""
    for other in known:
        if gpu.uuid is not None and gpu.uuid == other.uuid:
            said = gpu.model_dump(exclude_none=True, exclude_defaults=True)
            return GpuFacts.model_validate({**other.model_dump(), **said})
    return gpu


def caches(environment: Mapping[str, str]) -> dict[str, Path]:
    """Where Hugging Face's libraries will really put things: each variable of its own wins over HF_HOME."""
    home = Path(environment.get("HOME") or Path.home())
    base = environment.get("XDG_CACHE_HOME")
    cache = Path(base) if base else home / ".cache"
    hf_home = Path(environment.get("HF_HOME") or cache / "huggingface")
    hub = environment.get("HF_HUB_CACHE") or environment.get("HUGGINGFACE_HUB_CACHE") or hf_home / "hub"
    datasets = environment.get("HF_DATASETS_CACHE") or hf_home / "datasets"
    return {
        "hf_home": hf_home.expanduser(),
        "hub_cache": Path(hub).expanduser(),
        "datasets_cache": Path(datasets).expanduser(),
    }


def _disks(state_dir: Path, cache_paths: Mapping[str, Path]) -> Iterable[DiskFacts]:
    mounts = _mounts()
    for purpose, path in {"state": state_dir, **cache_paths, "shm": Path("/dev/shm")}.items():  # noqa: S108
        place = _nearest(path)
        try:
            usage = shutil.disk_usage(place)
        except OSError:
            continue
        yield DiskFacts(
            purpose=purpose,
            path=str(path),
            free_bytes=usage.free,
            total_bytes=usage.total,
            filesystem=_filesystem(place, mounts),
        )


def _nearest(path: Path) -> Path:
    """The path, or the nearest parent of it that exists: that is the disk it will be on."""
    for place in (path, *path.parents):
        if place.exists():
            return place
    return Path("/")


def _mounts() -> list[tuple[str, str]]:
    """(mount point, filesystem), longest mount point first."""
    try:
        lines = Path("/proc/self/mounts").read_text(errors="replace").splitlines()
    except OSError:
        return []
    rows = [line.split(" ") for line in lines]
    return sorted(((row[1], row[2]) for row in rows if len(row) > 2), key=lambda row: -len(row[0]))


def _filesystem(place: Path, mounts: list[tuple[str, str]]) -> str | None:
    real = place.resolve()
    return next((kind for point, kind in mounts if real.is_relative_to(point)), None)


def _versions(python: str, problems: list[str]) -> tuple[str | None, dict[str, str]]:
    """Version of the training interpreter and of the packages it has."""
    if os.path.realpath(python) == os.path.realpath(sys.executable):
        packages = {}
        for name in PACKAGES:
            try:
                packages[name] = importlib.metadata.version(name)
            except importlib.metadata.PackageNotFoundError:
                continue
        return platform.python_version(), packages
    try:
        answer = subprocess.run(
            [python, "-c", _PROGRAM, *PACKAGES], capture_output=True, timeout=_VERSIONS_S, check=True
        )
        said = json.loads(answer.stdout)
        return str(said["python"]), {str(name): str(version) for name, version in said["packages"].items()}
    except (OSError, subprocess.SubprocessError, ValueError, KeyError) as error:
        problems.append(f"RANKCALL_PYTHON={python} cannot say its versions: {error}")
        return None, {}


def _cpus() -> int:
    """Processors this container may use: its affinity, and its cgroup's quota where that is less."""
    allowed = len(os.sched_getaffinity(0))
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return max(1, min(allowed, round(int(quota) / int(period))))
    except (OSError, ValueError):
        return allowed


def _memory_bytes() -> int:
    """Memory of the machine, or the container's limit where that is less."""
    total: int = psutil.virtual_memory().total
    return min(total, memory_limit.limit_bytes() or total)


def _proxies(environment: Mapping[str, str]) -> dict[str, str]:
    """Proxy variables of either case, without the passwords in them."""
    found = {name: value for name, value in environment.items() if name.lower() in _PROXIES and value}
    return {name: re.sub(r"//[^/@\s]*@", "//***@", value) for name, value in found.items()}


def _soft_limit(which: int) -> int:
    soft, _ = resource.getrlimit(which)
    return -1 if soft == resource.RLIM_INFINITY else soft
