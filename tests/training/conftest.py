"""What training tests share: the demo's model and data, made once, and hosts to train on."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# Hosts are the host tests' own.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "hosts"))

from fleet import Fleet, fleet
from namespaces import MakeHosts, making


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demo")
    subprocess.run([sys.executable, "-m", "coordinator.demo.model", str(folder)], check=True, timeout=600)
    return folder


@pytest.fixture
def hosts() -> Iterator[MakeHosts]:
    """As in tests/hosts: `hosts(2)` makes two hosts; where the machine cannot, the test fails and says so."""
    with making() as make:
        yield make


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Two replicas on hosts of their own, ready to train."""
    with making() as make, fleet(make(2), tmp_path_factory.mktemp("pair")) as deployment:
        for replica in deployment.replicas:
            replica.host.groups = True
        deployment.up()
        deployment.ready(*(replica.host.name for replica in deployment.replicas))
        yield deployment
