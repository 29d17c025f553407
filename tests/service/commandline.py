"""The real `rankcall` command as tests run it: a process with its own environment, output and exit code."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from serving import TOKEN


@dataclass(frozen=True)
class Ran:
    """What a command did: exit code, data, talk."""

    code: int
    out: str
    err: str


@dataclass(frozen=True)
class Shell:
    """Runs `rankcall` against one coordinator, from one folder."""

    folder: Path
    url: str
    token: str = TOKEN

    def environment(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("RANKCALL_")}
        own = {"RANKCALL_URL": self.url, "RANKCALL_TOKEN": self.token, "COLUMNS": "100"}
        return {**clean, **own, **(more or {})}

    def start(self, *arguments: str, **more: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "coordinator.cli", *arguments],
            cwd=self.folder,
            env=self.environment(more),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str, within_s: float = 60, **more: str) -> Ran:
        process = self.start(*arguments, **more)
        try:
            out, err = process.communicate(timeout=within_s)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            raise AssertionError(f"rankcall {arguments} did not end: {out}{err}") from None
        assert "Traceback" not in err, err
        return Ran(process.returncode, out, err)
