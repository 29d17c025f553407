"""The demo's model and data, made once for all training tests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demo")
    subprocess.run([sys.executable, "-m", "coordinator.demo.model", str(folder)], check=True, timeout=120)
    return folder
