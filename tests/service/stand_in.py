"""A training stack of 200 lines less: what RANKCALL_PYTHON names in tests of the agent, so that a job takes seconds.

Called like the interpreter of a training environment. `agent.prepare`, accelerate's launcher and `agent.compare`
are stood in for; anything else (the probes, torch included) goes to the real interpreter. What it does is told
by `behaviour.json` in the submission's bundle:

    {"steps": 3, "step_s": 0.05, "exit": {"0": 0}, "until": "release", "stubborn": true, "print": "...", "silent": true,
     "prepare_until": "release", "hang": {"0": "sleep", "1": "stop"}}

`hang`: the ranks named do nothing any more after their steps, in the first attempt on this replica.
"""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ATTEMPT = Path(os.environ.get("RANKCALL_ATTEMPT_DIR", "."))


def behaviour() -> dict[str, Any]:
    path = Path("behaviour.json")
    return json.loads(path.read_text()) if path.exists() else {}


def prepare() -> int:
    told = behaviour()
    if told.get("silent"):
        time.sleep(600)
    while told.get("prepare_until") and not Path(told["prepare_until"]).exists():
        time.sleep(0.1)
    Path(ATTEMPT, "prepare-result.json").write_text(json.dumps({"rows": 8, "digest": "d1"}))
    print("prepared")
    return 0


def launch(arguments: list[str]) -> int:
    """As torchrun does: the real work is in a worker with a session of its own."""
    config = Path(arguments[arguments.index("--config_file") + 1]).read_text()
    lines = dict(line.split(": ", 1) for line in config.splitlines() if ": " in line)
    worker = [sys.executable, __file__, "worker", lines["machine_rank"], lines["num_machines"]]
    marks = {"RANK": lines["machine_rank"], "LOCAL_RANK": "0"}
    return subprocess.Popen(worker, start_new_session=True, env={**os.environ, **marks}).wait()


def worker(rank: int, world: int) -> int:
    told = behaviour()
    if told.get("stubborn"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print(f"worker {os.getpid()} of rank {rank}", flush=True)
    print(told.get("print", ""), flush=True)
    steps = told.get("steps", 3)
    record(type="start", rank=rank, world_size=world, total_steps=steps)
    for step in range(1, steps + 1):
        print(f"step {step}", flush=True)
        record(type="log", rank=rank, step=step, total_steps=steps, loss=1.0 / step)
        time.sleep(told.get("step_s", 0.02))
    for _ in range(told.get("burst_lines", 0) // 1000):
        sys.stdout.write("".join(f"{number:06d} " + "x" * 92 + "\n" for number in range(1000)))
    sys.stdout.flush()
    hang(told.get("hang", {}).get(str(rank), ""))
    while told.get("until") and not Path(told["until"]).exists():
        print("waiting", flush=True)
        time.sleep(0.1)
    record(type="end", rank=rank, step=steps)
    if rank == 0:
        save(Path("outputs"))
    print("the end", flush=True)
    return int(told.get("exit", {}).get(str(rank), 0))


def hang(how: str) -> None:
    hung = Path("hung-before")
    if not how or hung.exists():
        return
    hung.touch()
    if how == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(600)


def record(**values: Any) -> None:
    with Path(ATTEMPT, "streams", "progress.0").open("a") as file:
        file.write(json.dumps({"at": time.time(), **values}) + "\n")


def save(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    header = json.dumps({"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(range(16)))
    (folder / "config.json").write_text("{}")


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["worker"]:
        return worker(int(arguments[1]), int(arguments[2]))
    if "agent.prepare" in arguments:
        return prepare()
    if "accelerate.commands.launch" in arguments:
        return launch(arguments)
    return os.execv(sys.executable, [sys.executable, *arguments])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
