"""The handshake on two GPUs with NCCL: right values, and hardly more time than the bare script."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
from nvidia import gpus

pytestmark = pytest.mark.gpu

# The check beside a bare init and first all_reduce of the same run.
ALLOWED_RATIO = 1.5


def test_the_collective_check_passes_with_nccl_and_costs_hardly_more_than_the_bare_script() -> None:
    if gpus() < 2:
        pytest.skip(
            f"this machine has {gpus()} NVIDIA GPUs, the test needs two; nothing about NCCL was tested"
        )
    script = Path(__file__).with_name("nccl.py")
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=True, timeout=500
    )
    figures = json.loads(done.stdout.splitlines()[-1])
    for facts in figures["facts"]:
        assert facts["torch_ready"]
        assert facts["nccl"]
        assert len(facts["gpus"]) == 1
        assert not facts["problems"]
    ratios = []
    for pair in figures["pairs"]:
        for result in pair["check"]["results"]:
            assert result["ok"], result
            assert result["values_ok"]
        own_s = max(r["init_s"] + r["first_all_reduce_s"] for r in pair["check"]["results"])
        ratios.append(own_s / pair["bare"]["total_s"])
    assert statistics.median(ratios) <= ALLOWED_RATIO, ratios
    assert figures["absent"]["missing_ranks"] == [1]
    assert figures["two_gpus_of_one_replica"]["results"][0]["ok"]
