"""An Axolotl plugin that makes a healthy training quiet for a while, as healthy trainings are: no step, no word, but work.

Travels with a submission's bundle: `plugins: [quiet.QuietPlugin]`. `quiet.json` says `what` kind of phase, how many
`seconds`, and which `ranks` are in it while the others wait for them: tokenising (processes of its own that compute), reading
(a slow disk), downloading (a slow network), compiling (one process that computes, before the first step), evaluating (this
process computes), saving (small pieces to a slow disk), still (nothing at all, as in a name lookup that times out), talking
(nothing but a line now and then, as who waits for a busy server), plain (none).
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from axolotl.integrations.base import BasePlugin
from transformers import TrainerCallback

PLAN = json.loads(Path("quiet.json").read_text())
HERE = int(os.environ.get("RANK", "0")) in PLAN["ranks"]
PIECE = 64 << 10
EVERY_S = 0.5
COMPUTES = (
    f"import time; end = time.monotonic() + {PLAN['seconds']}\nwhile time.monotonic() < end: sum(range(1000))"
)


class QuietPlugin(BasePlugin):  # type: ignore[misc]
    def load_datasets(self, cfg: Any, preprocess: bool = False) -> None:
        if not preprocess:
            during("tokenising", compute_in_children)
            during("downloading", download)

    def pre_model_load(self, cfg: Any) -> None:
        during("reading", read)

    def add_callbacks_post_trainer(self, cfg: Any, trainer: Any) -> list[TrainerCallback]:
        return [Quiet()]


class Quiet(TrainerCallback):  # type: ignore[misc]
    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 0:
            during("compiling", compute_in_children)
        if state.global_step == 5:
            during("still", lambda: time.sleep(PLAN["seconds"]))
            during("talking", talk)

    def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        during("evaluating", lambda: exec(COMPUTES, {}))

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        during("saving", write)


def during(what: str, work: Callable[[], object]) -> None:
    """Once, where the plan says so."""
    if HERE and PLAN["what"] == what:
        PLAN["what"] = "plain"
        print(f"quiet: {what}", flush=True)
        work()


def compute_in_children() -> None:
    subprocess.run([sys.executable, "-c", COMPUTES], check=True)


def until_over(piece: Callable[[], object], every_s: float = EVERY_S) -> None:
    end = time.monotonic() + PLAN["seconds"]
    while time.monotonic() < end:
        piece()
        time.sleep(every_s)


def read() -> None:
    with Path(sys.executable).resolve().open("rb", buffering=0) as file:
        until_over(lambda: file.read(PIECE) or file.seek(0))


def write() -> None:
    with Path("slow-disk").open("wb", buffering=0) as file:
        until_over(lambda: (file.write(bytes(PIECE)), os.fsync(file.fileno())))


def download() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        here = socket.create_connection(server.getsockname())
        there, _ = server.accept()

        def serve() -> None:
            until_over(lambda: there.sendall(bytes(PIECE)))
            there.close()

        threading.Thread(target=serve).start()
        until_over(lambda: here.recv(PIECE), 0.01)


def talk() -> None:
    until_over(lambda: print("the server is busy; trying again in 5 s", flush=True), 5.0)
