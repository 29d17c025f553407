"""A watch on a real terminal: redrawn in place, colours only where they are wanted, Ctrl-C detaches."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from commandline import Shell
from serving import TOKEN, Coordinator, running
from simulated_agent import STEPS, Agent

from coordinator.core.protocol import Stage

CONFIG = """\
base_model: org/model
datasets: [{path: org/data, type: alpaca}]
learning_rate: 0.0002
output_dir: ./outputs
"""
COLOUR = re.compile(rb"\x1b\[[0-9;]*3[0-9][0-9;]*m")


class Terminal:
    """`rankcall` on a terminal of its own."""

    def __init__(self, shell: Shell, *arguments: str, **more: str) -> None:
        self._own, other = pty.openpty()
        environment = shell.environment({"TERM": "xterm-256color", "LINES": "40", **more})
        for name in {"NO_COLOR", "FORCE_COLOR", "CI"} - set(more):
            environment.pop(name, None)
        self.process = subprocess.Popen(
            ["setsid", "--ctty", sys.executable, "-m", "coordinator.cli", *arguments],
            cwd=shell.folder,
            env=environment,
            stdin=other,
            stdout=other,
            stderr=other,
        )
        os.close(other)
        self.screen = b""

    def read(self, until: bytes | None = None, within_s: float = 60) -> bytes:
        """What came, until a text is there or (without one) until the command has ended."""
        end_s = time.monotonic() + within_s
        while until is None or until not in self.screen:
            assert time.monotonic() < end_s, self.screen.decode(errors="replace")
            if select.select([self._own], [], [], 0.2)[0]:
                try:
                    piece = os.read(self._own, 65536)
                except OSError:
                    piece = b""
                if not piece:
                    break
                self.screen += piece
        return self.screen

    def type(self, keys: bytes) -> None:
        os.write(self._own, keys)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._own)


@pytest.fixture
def coordinator(tmp_path: Path) -> Iterator[Coordinator]:
    with running(tmp_path / "state") as served:
        yield served


@pytest.fixture
def shell(coordinator: Coordinator, tmp_path: Path) -> Shell:
    (tmp_path / "config.yml").write_text(CONFIG)
    return Shell(tmp_path, coordinator.url)


@pytest.fixture
def agents(coordinator: Coordinator) -> Iterator[list[Agent]]:
    pair = [Agent(coordinator.url, number, TOKEN) for number in range(2)]
    yield pair
    for agent in pair:
        agent.end()


SUBMIT = ("submit", "config.yml", "--gpus-per-node", "0", "--watch")


@pytest.mark.parametrize("no_color", [False, True])
def test_a_terminal_shows_stages_and_progress_in_place(
    shell: Shell, agents: list[Agent], no_color: bool
) -> None:
    for agent in agents:
        agent.hold = frozenset({Stage.COLLECT})
        agent.live()
    terminal = Terminal(shell, *SUBMIT, **({"NO_COLOR": "1"} if no_color else {}))
    screen = terminal.read(until=f"step {STEPS}/{STEPS}".encode())
    for stage in ("gather", "tcp", "collective", "train"):
        assert stage.encode() in screen
    assert "━".encode() in screen, "a progress bar"
    for agent in agents:
        agent.hold = frozenset()
        agent.version = None
    screen = terminal.read()
    assert terminal.process.wait(20) == 0
    assert b"succeeded" in screen
    assert b"\x1b[?25h" in screen, "the cursor is given back"
    assert bool(COLOUR.search(screen)) is not no_color
    terminal.close()


def test_ctrl_c_detaches_says_how_to_come_back_and_gives_the_cursor_back(
    shell: Shell, coordinator: Coordinator
) -> None:
    terminal = Terminal(shell, *SUBMIT)
    terminal.read(until=b"waiting")
    terminal.type(b"\x03")
    screen = terminal.read()
    assert terminal.process.wait(20) == 130
    assert b"--watch" in screen
    assert b"\x1b[?25h" in screen
    with coordinator.client() as client:
        assert client.get("/api/v1/jobs").json()["items"][0]["state"] == "queued"
    terminal.close()
