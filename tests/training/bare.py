"""The floor: what rankcall does for the demo, typed out by hand. `python tests/training/bare.py FOLDER`.

Two loopback "machines" (127.0.0.1 and 127.0.0.2) each run `axolotl preprocess` and `accelerate launch` on
the demo's model, with configurations written down here and nothing of rankcall but the plugin that makes
Axolotl run on a CPU. The time to the first step is what rankcall's own share is measured against. Prints
one JSON object; exit 1 when a machine failed.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]

ACCELERATE = """\
compute_environment: LOCAL_MACHINE
distributed_type: DEEPSPEED
use_cpu: true
machine_rank: {rank}
num_machines: 2
num_processes: 2
main_process_ip: 127.0.0.1
main_process_port: {port}
deepspeed_config:
  deepspeed_config_file: zero2.json
  deepspeed_multinode_launcher: standard
  zero3_init_flag: false
"""

ZERO2 = {
    "zero_optimization": {"stage": 2, "contiguous_gradients": True, "overlap_comm": True},
    "zero_force_ds_cpu_optimizer": False,
    "gradient_accumulation_steps": 1,
    "gradient_clipping": "auto",
    "train_micro_batch_size_per_gpu": "auto",
}

CPU_KEYS = """
bf16: false
fp16: false
tf32: false
lora_mlp_kernel: false
lora_qkv_kernel: false
lora_o_kernel: false
plugins: [agent.cpu_plugin.CpuPlugin]
"""

FIRST_STEP = re.compile(rb"\{'loss':")
RANK_VARIABLES = re.compile(r"^(WORLD_SIZE|RANK|LOCAL_RANK|MASTER_|ACCELERATE_|TORCHELASTIC_|GROUP_)")


def prepare(folder: Path, rank: int, port: int, demo: Path) -> Path:
    machine = folder / f"machine{rank}"
    shutil.rmtree(machine, ignore_errors=True)
    shutil.copytree(demo, machine, ignore=shutil.ignore_patterns("prepared", "outputs", "machine*"))
    (machine / "accelerate.yaml").write_text(ACCELERATE.format(rank=rank, port=port))
    (machine / "zero2.json").write_text(json.dumps(ZERO2))
    lines = [line for line in (machine / "demo.yml").read_text().splitlines() if not line.startswith("bf16")]
    (machine / "config.yml").write_text("\n".join(lines) + CPU_KEYS)
    return machine


def environment() -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not RANK_VARIABLES.match(key)}
    return kept | {
        "DS_ACCELERATOR": "cpu",
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "AXOLOTL_DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONPATH": os.pathsep.join(filter(None, (str(REPOSITORY), os.environ.get("PYTHONPATH")))),
        "PYTHONUNBUFFERED": "1",
    }


def start(machine: Path, name: str, *arguments: str) -> subprocess.Popen[bytes]:
    with (machine / f"{name}.log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", *arguments],
            cwd=machine,
            env=environment(),
            stdout=log,
            stderr=subprocess.STDOUT,
        )


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def run(folder: Path, demo: Path | None = None) -> dict[str, object]:
    """Runs it all under `folder`; times are seconds from the start, the base model's making not counted."""
    if demo is None:
        demo = folder / "demo"
        subprocess.run(
            [sys.executable, "-m", "coordinator.demo.model", str(demo)], check=True, cwd=REPOSITORY
        )
    port = free_port()
    machines = [prepare(folder, rank, port, demo) for rank in (0, 1)]
    began = time.monotonic()
    preprocess = [start(machine, "prepare", "axolotl.cli.preprocess", "config.yml") for machine in machines]
    prepare_codes = [process.wait() for process in preprocess]
    prepared_s = time.monotonic() - began
    train = [
        start(
            machine,
            "train",
            "accelerate.commands.launch",
            "--config_file",
            "accelerate.yaml",
            "-m",
            "axolotl.cli.train",
            "config.yml",
        )
        for machine in machines
    ]
    first_step_s = None
    while any(process.poll() is None for process in train):
        if first_step_s is None and FIRST_STEP.search((machines[0] / "train.log").read_bytes()):
            first_step_s = time.monotonic() - began
        time.sleep(0.1)
    ended_s = time.monotonic() - began
    return {
        "exit_codes": [*prepare_codes, *(process.returncode for process in train)],
        "prepared_s": round(prepared_s, 1),
        "first_step_s": None if first_step_s is None else round(first_step_s, 1),
        "ended_s": round(ended_s, 1),
        "losses": [
            float(x) for x in re.findall(r"\{'loss': '([\d.]+)'", (machines[0] / "train.log").read_text())
        ],
        "adapter": (machines[0] / "outputs/lora-out/adapter_model.safetensors").is_file(),
    }


def main() -> int:
    result = run(Path(sys.argv[1]))
    print(json.dumps(result))
    return 0 if not any(result["exit_codes"]) and result["adapter"] else 1  # type: ignore[arg-type, call-overload]


if __name__ == "__main__":
    sys.exit(main())
