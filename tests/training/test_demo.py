"""`rankcall demo` as a user runs it: it ends with a model, and however it is left, nothing of it stays."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.training

DEMO = [sys.executable, "-m", "coordinator.cli", "demo", "--port", "0"]


def start(state: Path, *more: str) -> subprocess.Popen[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("RANKCALL_")}
    return subprocess.Popen(
        [*DEMO, *more],
        env={**clean, "RANKCALL_STATE_DIR": str(state)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def wait_for(process: subprocess.Popen[str], text: str) -> str:
    """Reads the demo's output until a line has this text."""
    said = ""
    assert process.stdout is not None
    for line in process.stdout:
        said += line
        if text in line:
            return said
    raise AssertionError(f"the demo ended without {text!r}:\n{said}")


def of_demo(state: Path) -> list[psutil.Process]:
    """Every process with the state folder in its environment."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            named = any(str(state) in value for value in process.environ().values())
            if named and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def gone(state: Path, within_s: float) -> bool:
    end_s = time.monotonic() + within_s
    while of_demo(state) and time.monotonic() < end_s:
        time.sleep(0.2)
    return not of_demo(state)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_while_it_starts_it_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    demo = start(tmp_path)
    wait_for(demo, "The demo:")
    demo.send_signal(number)
    output, _ = demo.communicate(timeout=60)
    assert demo.returncode == 130, output
    assert "Traceback" not in output
    assert gone(tmp_path, 1), of_demo(tmp_path)


@pytest.mark.long
@pytest.mark.timeout(1500)
@pytest.mark.parametrize(
    ("moment", "leave", "within_s"),
    [
        ("… prepare", lambda demo: demo.send_signal(signal.SIGTERM), 1),
        ("… train", lambda demo: demo.send_signal(signal.SIGINT), 1),
        ("step ", lambda demo: demo.kill(), 30),
    ],
)
def test_left_while_it_works_it_leaves_nothing(
    tmp_path: Path, moment: str, leave: Callable[[subprocess.Popen[str]], None], within_s: float
) -> None:
    demo = start(tmp_path)
    wait_for(demo, moment)
    time.sleep(2)
    leave(demo)
    output, _ = demo.communicate(timeout=60)
    assert demo.returncode in (130, -signal.SIGKILL), output
    assert gone(tmp_path, within_s), of_demo(tmp_path)


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_it_ends_with_a_model_that_has_learned(tmp_path: Path) -> None:
    demo = start(tmp_path)
    output, _ = demo.communicate(timeout=1400)
    assert demo.returncode == 0, output
    folder = re.search(r"result: (\S+)", output)
    assert folder is not None
    assert (Path(folder[1]) / "adapter_model.safetensors").stat().st_size > 0
    losses = [float(text) for text in re.findall(r" loss (\d+\.\d+)", output)]
    assert losses[-1] < losses[0] / 2
    assert re.search(r"base: .*\n.*tuned: ", output)
    assert gone(tmp_path, 1), of_demo(tmp_path)


def test_a_model_that_cannot_be_made_is_said_and_leaves_nothing(tmp_path: Path) -> None:
    """As where the training stack is not installed: the interpreter finds no torch."""
    (tmp_path / "broken" / "torch").mkdir(parents=True)
    (tmp_path / "broken" / "torch" / "__init__.py").write_text("raise ImportError('no torch here')")
    os.environ["PYTHONPATH"] = str(tmp_path / "broken")
    try:
        demo = start(tmp_path / "state")
    finally:
        del os.environ["PYTHONPATH"]
    output, _ = demo.communicate(timeout=200)
    assert demo.returncode == 1
    assert "no torch here" in output
    assert "rankcall[train]" in output
    assert gone(tmp_path / "state", 1), of_demo(tmp_path / "state")


def test_a_port_in_use_is_said_at_once(tmp_path: Path) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        demo = subprocess.run(
            [*DEMO[:-1], port],
            env={**os.environ, "RANKCALL_STATE_DIR": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
        )
    assert demo.returncode == 1
    assert f"(pid {os.getpid()})" in demo.stderr
