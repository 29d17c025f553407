"""A real NCCL hang, and what the evidence says of it: `python tests/gpu/evidence.py FOLDER` prints what was gathered.

Two processes on two GPUs; rank 1 does not come to the second all_reduce. The record is asked for as the agent asks for it.
Needs torch and this repository; what the machine says is left out where pydantic and NVML's bindings are not there.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

from nccl import APART, ROOT, free_port

sys.path.insert(0, str(ROOT))

from agent import flight_recorder
from coordinator.core.clock import monotonic_s, now_at

# As rendered for a training on GPUs; tests/unit/test_render.py holds both to be equal.
RECORDED = {
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
    "TORCH_FR_BUFFER_SIZE": "2000",
    "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000",
    "TORCH_FR_DUMP_TEMP_FILE": "../attempt-1/flight-recorder.",
    "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "../attempt-1/flight-recorder.",
    "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": "../attempt-1/flight-recorder.",
}

HANGS = """
import os, time
import torch, torch.distributed as dist
dist.init_process_group("nccl", device_id=torch.device("cuda", 0))
value = torch.ones(1 << 20, device="cuda")
dist.all_reduce(value)
torch.cuda.synchronize()
print("up", flush=True)
def train_step():
    dist.all_reduce(value)
    torch.cuda.synchronize()
if dist.get_rank() == 0:
    train_step()
time.sleep(120)
"""


def main(folder: Path) -> None:
    work, attempt = folder / "work", folder / "attempt-1"
    work.mkdir(parents=True)
    attempt.mkdir()
    port = free_port()
    started = [
        subprocess.Popen(
            [sys.executable, "-c", HANGS],
            cwd=work,
            env={
                **os.environ,
                **RECORDED,
                **APART,
                "CUDA_VISIBLE_DEVICES": str(rank),
                "RANK": str(rank),
                "LOCAL_RANK": "0",
                "WORLD_SIZE": "2",
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
            },
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    try:
        for process in started:
            assert process.stdout is not None and process.stdout.readline() == "up\n"
        time.sleep(5)
        since_at, begin_s = now_at(), monotonic_s()
        flight_recorder.wait(flight_recorder.ask(attempt), begin_s + 7.0, since_at)
        print(f"took {monotonic_s() - begin_s:.1f} s")
        print(*flight_recorder.told(attempt).lines, sep="\n")
        with contextlib.suppress(ImportError):
            from agent import machine_evidence

            print(*machine_evidence.gpu_processes(os.environ), sep="\n")
            print(*machine_evidence.nccl_health(3.0), sep="\n")
            print(*machine_evidence.kernel_messages(), sep="\n")
    finally:
        for process in started:
            process.kill()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
