"""Facts of all replicas compared: what must be equal blocks, what should be warns, each with its values."""

from __future__ import annotations

import pytest

from coordinator.core.protocol import DiskFacts, Facts, Finding, GpuFacts, GpuHolder
from coordinator.match import Surroundings, match
from coordinator.match.each import GIB, runs_on

BLACKWELL = GpuFacts(
    index=0,
    name="NVIDIA GeForce RTX 5090",
    memory_bytes=32 * GIB,
    free_bytes=31 * GIB,
    compute_capability="12.0",
)
GOOD = Facts(
    python="3.11.7",
    kernel="6.1.0",
    packages={
        "torch": "2.9.1+cu130",
        "accelerate": "1.13.0",
        "deepspeed": "0.18.9",
        "axolotl": "0.19.0",
        "transformers": "5.16.1",
        "rankcall": "0.1.0",
    },
    cuda="13.0",
    nccl="2.27.7",
    driver="580.126.09",
    arch_list=("sm_90", "sm_100", "sm_120", "compute_120"),
    gpus=(BLACKWELL,),
    limits={"nofile": 1048576, "memlock": -1},
    torch_ready=True,
)


def changed(**values: object) -> Facts:
    return GOOD.model_copy(update=values)


def packages(**versions: str) -> Facts:
    return changed(packages={**GOOD.packages, **versions})


def found(*facts: Facts, gpus_per_node: int | None = None) -> tuple[Finding, ...]:
    return match({f"r-{at}": fact for at, fact in enumerate(facts)}, gpus_per_node=gpus_per_node)


def only(findings: tuple[Finding, ...]) -> Finding:
    assert len(findings) == 1, [f"{one.code} {one.message}" for one in findings]
    return findings[0]


def test_equal_replicas_fit() -> None:
    assert found(GOOD, GOOD, GOOD) == ()


@pytest.mark.parametrize(
    ("other", "code", "severity"),
    [
        (packages(torch="2.8.0+cu130"), "ENV001", "error"),
        (packages(torch="2.9.2+cu130"), "ENV001", "warning"),
        (changed(nccl="2.28.3"), "ENV002", "error"),
        (changed(nccl="2.27.5"), "ENV002", "warning"),
        (changed(cuda="12.8"), "ENV003", "error"),
        (changed(cuda="13.1"), "ENV003", "warning"),
        (packages(accelerate="1.12.0"), "ENV004", "error"),
        (packages(deepspeed="0.17.0"), "ENV005", "error"),
        (packages(axolotl="0.18.0"), "ENV006", "error"),
        (packages(transformers="5.15.0"), "ENV007", "error"),
        (packages(rankcall="0.2.0"), "ENV008", "error"),
        (changed(driver="570.0"), "ENV017", "warning"),
        (changed(python="3.12.1"), "ENV018", "warning"),
        (changed(kernel="5.15.0"), "ENV019", "note"),
        (changed(gpus=(BLACKWELL.model_copy(update={"name": "NVIDIA H100"}),)), "ENV010", "error"),
        (
            changed(gpus=(BLACKWELL.model_copy(update={"memory_bytes": 24 * GIB, "free_bytes": None}),)),
            "ENV029",
            "warning",
        ),
        (changed(gpus=(BLACKWELL, BLACKWELL)), "ENV011", "error"),
    ],
)
def test_a_difference_is_found_with_the_values_of_each(other: Facts, code: str, severity: str) -> None:
    finding = only(found(GOOD, GOOD, other))
    assert (finding.code, finding.severity, finding.replica) == (code, severity, "r-2")
    values = finding.evidence["values"]
    assert isinstance(values, dict)
    assert set(values) == {"r-0", "r-1", "r-2"}
    assert values["r-0"] == values["r-1"] != values["r-2"]
    assert finding.hint


def test_of_two_different_replicas_neither_is_the_odd_one() -> None:
    assert only(found(GOOD, packages(torch="2.8.0"))).replica is None


def test_a_patch_release_of_python_is_no_difference() -> None:
    assert found(GOOD, changed(python="3.11.9")) == ()


def test_a_package_missing_on_one_replica_is_a_warning() -> None:
    other = changed(packages={k: v for k, v in GOOD.packages.items() if k != "deepspeed"})
    finding = only(found(GOOD, other))
    assert (finding.code, finding.severity) == ("ENV005", "warning")
    assert "missing on r-1" in finding.message


@pytest.mark.parametrize(
    ("arch_list", "capability", "fits"),
    [
        (("sm_80", "sm_90"), "9.0", True),
        (("sm_80", "sm_86"), "8.9", True),
        (("sm_80", "sm_90"), "12.0", False),
        (("sm_80", "compute_90"), "12.0", True),
        (("sm_90a",), "9.0", True),
        (("sm_100a",), "10.3", False),
        (("sm_90",), "8.0", False),
    ],
)
def test_a_build_runs_on_what_it_has_code_for(
    arch_list: tuple[str, ...], capability: str, fits: bool
) -> None:
    assert runs_on(arch_list, capability) is fits


def test_a_gpu_torch_was_not_built_for_blocks() -> None:
    old = changed(arch_list=("sm_80", "sm_90"))
    assert {finding.code for finding in found(old, old)} == {"ENV012"}


def test_a_gpu_that_runs_no_kernel_blocks() -> None:
    broken = changed(problems=("GPU 0 (NVIDIA H100) cannot run a kernel: no kernel image is available",))
    finding = only(found(GOOD, broken))
    assert (finding.code, finding.severity, finding.replica) == ("ENV013", "error", "r-1")


def test_fewer_gpus_than_the_job_wants_block_and_more_do_not() -> None:
    two = changed(gpus=(BLACKWELL, BLACKWELL))
    assert found(GOOD, two, gpus_per_node=1) == ()
    finding = only(found(GOOD, two, gpus_per_node=2))
    assert (finding.code, finding.replica) == ("ENV014", "r-0")


def test_on_cpus_nothing_about_gpus_is_judged() -> None:
    assert found(changed(gpus=(), cuda=None), changed(gpus=(), driver="1"), gpus_per_node=0) == ()


def test_missing_torch_blocks_and_says_why() -> None:
    without = changed(
        torch_ready=False, problems=("torch cannot be imported by python3: No module named 'torch'",)
    )
    finding = only(found(GOOD, without))
    assert (finding.code, finding.replica) == ("ENV016", "r-1")
    assert "No module named 'torch'" in finding.message


def disk(purpose: str, free: int, total: int) -> Facts:
    return changed(
        disks=(DiskFacts(purpose=purpose, path=f"/{purpose}", free_bytes=free, total_bytes=total),)
    )


@pytest.mark.parametrize(
    ("fact", "code", "severity"),
    [
        (disk("shm", 60 << 20, 64 << 20), "ENV021", "warning"),
        (disk("hub_cache", 3 * GIB, 100 * GIB), "ENV020", "warning"),
        (disk("state", 1 << 20, 100 * GIB), "ENV020", "error"),
        (changed(limits={"nofile": 1024}), "ENV023", "warning"),
        (changed(limits={"memlock": 65536}), "ENV022", "note"),
        (changed(leftovers={"WORLD_SIZE": "2"}), "ENV024", "note"),
        (
            changed(cache_environment={"HF_HOME": "/data/.cache", "HF_HUB_CACHE": "/root/.cache/hub"}),
            "ENV025",
            "note",
        ),
        (changed(proxies={"HTTP_PROXY": "http://proxy:3128"}), "ENV026", "note"),
        (changed(problems=("NVML cannot be asked: driver not loaded",)), "ENV028", "warning"),
        (changed(gpus=(BLACKWELL.model_copy(update={"free_bytes": 2 * GIB}),)), "ENV015", "warning"),
    ],
)
def test_what_one_replica_lacks_is_said_of_that_replica(fact: Facts, code: str, severity: str) -> None:
    finding = only(found(GOOD, fact))
    assert (finding.code, finding.severity, finding.replica) == (code, severity, "r-1")


def test_a_cache_inside_hf_home_is_no_conflict() -> None:
    inside = changed(cache_environment={"HF_HOME": "/data/hf", "HF_HUB_CACHE": "/data/hf/hub"})
    assert found(inside, inside) == ()


def around(*peers: str, clock_offset_s: float | None = None) -> tuple[Finding, ...]:
    facts = changed(proxies={"HTTP_PROXY": "http://proxy:3128", "NO_PROXY": "localhost, 10.0.0.0/24,fd00::2"})
    return match(
        {"r-0": facts}, gpus_per_node=None, surroundings={"r-0": Surroundings(peers, clock_offset_s)}
    )


def test_a_proxy_that_leaves_the_peers_alone_is_no_finding() -> None:
    assert around("10.0.0.7", "fd00::2") == ()


def test_a_proxy_that_would_catch_a_peer_is_a_warning_that_names_it() -> None:
    warned = only(around("10.0.0.7", "10.0.1.7"))
    assert (warned.code, warned.severity, warned.evidence["caught"]) == ("ENV026", "warning", ["10.0.1.7"])
    assert "NO_PROXY leaves out 10.0.1.7" in warned.message


def test_a_clock_that_is_off_is_a_note_and_a_little_is_nothing() -> None:
    assert around("10.0.0.7", clock_offset_s=-4.0) == ()
    noted = only(around("10.0.0.7", clock_offset_s=-42.3))
    assert (noted.code, noted.severity) == ("ENV030", "note")
    assert "42 s behind" in noted.message


def test_who_holds_the_memory_of_a_gpu_is_named() -> None:
    holders = (
        GpuHolder(pid=4711, name="python train.py", memory_bytes=20 * GIB),
        GpuHolder(pid=31, memory_bytes=None),
    )
    held = BLACKWELL.model_copy(update={"free_bytes": 10 * GIB, "holders": holders})
    message = only(found(changed(gpus=(held,)), GOOD)).message
    assert (
        "held by python train.py (pid 4711, 20.0 GiB), a process outside this container (pid 31)" in message
    )
