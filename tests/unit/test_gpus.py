"""What is known of a GPU by its name."""

from __future__ import annotations

import pytest

from coordinator.checks.gpus import NAMES, UnknownGpu, capability_of, gpu_of


@pytest.mark.parametrize(
    ("name", "capability"),
    [
        ("NVIDIA GeForce RTX 5090", (12, 0)),
        ("NVIDIA H200", (9, 0)),
        ("NVIDIA A100-SXM4-80GB", (8, 0)),
        ("NVIDIA L40S", (8, 9)),
        ("NVIDIA GeForce RTX 4090", (8, 9)),
        ("Tesla V100-PCIE-16GB", (7, 0)),
        ("Tesla T4", (7, 5)),
        ("NVIDIA B200", (10, 0)),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", (12, 0)),
        ("NVIDIA RTX 6000 Ada Generation", (8, 9)),
        ("NVIDIA RTX 5000 Ada Generation", (8, 9)),
        ("Quadro RTX 5000", (7, 5)),
        ("Quadro RTX 4000", (7, 5)),
        ("NVIDIA RTX A4000", (8, 6)),
        ("NVIDIA A10G", (8, 6)),
        ("NVIDIA A10", (8, 6)),
        ("NVIDIA A16", (8, 6)),
        ("NVIDIA A30", (8, 0)),
        ("NVIDIA H20", (9, 0)),
        ("NVIDIA H100 80GB HBM3", (9, 0)),
        ("NVIDIA GH200 480GB", (9, 0)),
        ("NVIDIA GeForce RTX 4070 Ti SUPER", (8, 9)),
        ("NVIDIA GeForce GTX 1660 Ti", (7, 5)),
        ("rtx5070ti", (12, 0)),
        ("4090", (8, 9)),
        ("t4", (7, 5)),
        ("sm_120", (12, 0)),
        ("8.6", (8, 6)),
        ("a toaster", None),
        ("NVIDIA", None),
        ("RTX", None),
        ("", None),
    ],
)
def test_a_gpu_is_known_by_its_name(name: str, capability: tuple[int, int] | None) -> None:
    assert capability_of(name) == capability


@pytest.mark.parametrize("name", NAMES)
def test_every_name_that_is_shown_is_known(name: str) -> None:
    assert gpu_of(name).capability == capability_of(f"NVIDIA {name}")


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(UnknownGpu) as refused:
        gpu_of("RTX 509")
    assert refused.value.near == "RTX 5090"
    with pytest.raises(UnknownGpu) as refused:
        gpu_of("a toaster")
    assert refused.value.near is None
