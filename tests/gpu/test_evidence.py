"""A hang of NCCL on two GPUs leaves a record of which rank waits in which collective."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from nvidia import gpus

pytestmark = pytest.mark.gpu


def test_the_record_names_the_collective_that_one_rank_waits_in(tmp_path: Path) -> None:
    if gpus() < 2:
        pytest.skip(f"this machine has {gpus()} NVIDIA GPUs, the test needs two; nothing of NCCL was tested")
    script = Path(__file__).with_name("evidence.py")
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path)], capture_output=True, text=True, check=True, timeout=240
    )
    waiting = done.stdout[done.stdout.index("=== rank 0") : done.stdout.index("=== rank 1")]
    assert "1 not finished" in waiting and "nccl:all_reduce" in waiting and "train_step" in waiting
    assert "0 not finished" in done.stdout[done.stdout.index("=== rank 1") :].splitlines()[0]
