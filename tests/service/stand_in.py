"""A training stack of 200 lines less: what RANKCALL_PYTHON names in tests of the agent, so that a job takes seconds.

Called like the interpreter of a training environment. `agent.prepare`, accelerate's launcher and `agent.compare`
are stood in for; anything else (the probes, torch included) goes to the real interpreter. What it does is told
by `behaviour.json` in the submission's bundle:

    {"noise": {"seed": 1, "pieces": 50, "seconds": 5},
     "steps": 3, "step_s": 0.05, "exit": {"0": 0}, "until": "release", "stubborn": true, "print": "...", "silent": true,
     "prepare_until": "release", "hang": {"0": "sleep", "1": "stop"}, "hang_when": "told", "hang_again": true,
     "save_steps": 2, "not_a_number": {"1": 2}, "saves_in": 1, "quiet": {"1": "computing"}, "quiet_s": 12,
     "no_plugin": true}

`noise`: the worker says what `noise.py` knows and nothing else, but notes in `workers` that it was there.
`hang`: the ranks named do nothing any more after their steps, in the first attempt (`kill`: they die);
with `hang_again` in each, and with `hang_when` not before this file is there.
`save_steps`: a checkpoint after so many, which a further attempt goes on from.
`not_a_number`: from this step on the loss of this rank is none. `saves_in`: only the attempt of this number saves a model,
and before it hangs. `quiet`: after their steps these ranks make none for `quiet_s`, but work (`computing`,
`writing`, `reading`) or wait for who does.
"""

from __future__ import annotations

import json
import os
import re
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import noise

# What only some of its processes need is imported where it is needed: each job starts eight of them.

ATTEMPT = Path(os.environ.get("RANKCALL_ATTEMPT_DIR", "."))


def behaviour() -> dict[str, Any]:
    path = Path("behaviour.json")
    return json.loads(path.read_text()) if path.exists() else {}


def prepare() -> int:
    from agent import leftovers
    from agent import prepare as prepare_again

    told = behaviour()
    if told.get("silent"):
        time.sleep(600)
    while told.get("prepare_until") and not Path(told["prepare_until"]).exists():
        time.sleep(0.1)
    output = prepare_again.output_of(Path(ATTEMPT, "axolotl.yaml"))
    assert output is not None
    leftovers.note(output, ATTEMPT)
    held = prepare_again.checkpoints_in(output, str(ATTEMPT))
    Path(ATTEMPT, "prepare-result.json").write_text(
        json.dumps({"rows": 8, "digest": "d1", "checkpoints": held})
    )
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
    if "noise" in told:
        return make_noise(rank, world, **told["noise"])
    if told.get("stubborn"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print(f"worker {os.getpid()} of rank {rank}", flush=True)
    print(told.get("print", ""), flush=True)
    steps, begin = told.get("steps", 3), resumed()
    record(type="start", rank=rank, world_size=world, step=begin, total_steps=steps)
    record(type="phase", rank=rank, phase="train", step=begin)
    spoiled = told.get("not_a_number", {}).get(str(rank), steps + 1)
    for step in range(begin + 1, steps + 1):
        print(f"step {step}", flush=True)
        bad = max(0, step - spoiled + 1)
        counts = (
            {"losses_not_finite": bad, "losses_not_finite_run": bad, "not_finite_step": spoiled}
            if bad
            else {}
        )
        record(type="log", rank=rank, step=step, total_steps=steps, loss=1.0 / step, **counts)
        if told.get("save_steps") and step % told["save_steps"] == 0:
            checkpoint(Path("outputs", f"checkpoint-{step}"), rank, world)
        time.sleep(told.get("step_s", 0.02))
    for _ in range(told.get("burst_lines", 0) // 1000):
        sys.stdout.write("".join(f"{number:06d} " + "x" * 92 + "\n" for number in range(1000)))
    sys.stdout.flush()
    saving = told.get("saves_in")
    if rank == 0 and ATTEMPT.name == f"attempt-{saving}":
        save(Path("outputs"))
    if doing := told.get("quiet", {}).get(str(rank)):
        work(rank, doing, told["quiet_s"])
    wait_for(told.get("hang_when"))
    hang(told.get("hang", {}).get(str(rank), ""), told.get("hang_again", False))
    wait_for(told.get("until"))
    record(type="end", rank=rank, step=steps)
    if rank == 0 and saving is None:
        save(Path("outputs"))
    print("the end", flush=True)
    return int(told.get("exit", {}).get(str(rank), 0))


def wait_for(file: str | None) -> None:
    while file and not Path(file).exists():
        print("waiting", flush=True)
        time.sleep(0.1)


def make_noise(rank: int, world: int, seed: int, pieces: int, seconds: float) -> int:
    with Path(ATTEMPT, "workers").open("a") as file:
        file.write(f"{os.getpid()}\n")
    first, *steps, last = noise.records(seed, rank, world, pieces)
    with Path(ATTEMPT, "streams", "progress.0").open("ab", buffering=0) as progress:
        progress.write(noise.line(first))
        for piece, step in zip(noise.pieces(seed, rank, pieces), steps, strict=True):
            sys.stdout.buffer.write(piece)
            sys.stdout.flush()
            progress.write(noise.line(step))
            time.sleep(seconds / pieces)
        progress.write(noise.line(last))
    if rank == 0:
        save(Path("outputs"))
    return 0


def resumed() -> int:
    """The step this attempt goes on from."""
    found = re.search(
        r"^resume_from_checkpoint: .*/checkpoint-(\d+)$", Path(ATTEMPT, "axolotl.yaml").read_text(), re.M
    )
    return int(found[1]) if found else 0


def checkpoint(folder: Path, rank: int, world: int) -> None:
    from agent import checkpoints

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "trainer_state.json").write_text("{}")
    checkpoints.saved(folder, rank, world, checkpoints.job_of(str(ATTEMPT)))


def hang(how: str, again: bool) -> None:
    if not how or (ATTEMPT.name != "attempt-1" and not again):
        return
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(600)


def work(rank: int, doing: str, seconds: float) -> None:
    """What a healthy training does for a while without a step: a share of one core, or small pieces to or from a disk."""
    record(type="phase", rank=rank, phase="save" if doing == "writing" else "evaluate")
    end = time.monotonic() + seconds
    with Path("slow-disk").open("w+b", buffering=0) as file, Path(__file__).open("rb", buffering=0) as ours:
        while time.monotonic() < end:
            match doing:
                case "computing":
                    # As much of a core on any machine; what the watchdog calls work begins at 0.08.
                    done_s = time.process_time() + 0.03
                    while time.process_time() < done_s:
                        pass
                case "writing":
                    file.write(bytes(65536))
                case "reading":
                    ours.seek(0)
                    ours.read(65536)
            time.sleep(0.1)


def record(**values: Any) -> None:
    if behaviour().get("no_plugin"):
        return
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
