"""Facts, addresses, GPUs, telemetry: what a replica knows of itself without torch."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from agent import addresses, facts, gpus
from agent.addresses import Interface, choose
from agent.settings import AgentSettings, SettingsError, platform_ordinal
from agent.telemetry import Meter
from coordinator.core import process
from coordinator.core.protocol import Facts, GpuFacts


def offered(*interfaces: Interface, route: str | None = None) -> list[str]:
    return [found.address for found in choose(interfaces, route)]


def test_the_address_that_routes_to_the_coordinator_comes_first_and_ipv4_before_ipv6() -> None:
    eth = Interface("eth0", ("10.0.0.5", "fd00::5"))
    net = Interface("eth1", ("172.20.1.7",))
    assert offered(eth, net, route="172.20.1.7") == ["172.20.1.7", "10.0.0.5", "fd00::5"]
    assert offered(eth, net, route="fd00::5")[0] == "fd00::5"
    assert choose((eth,), None)[0].interface == "eth0"


def test_loopback_bridges_link_local_and_interfaces_that_are_down_are_not_offered() -> None:
    assert offered(
        Interface("lo", ("127.0.0.1", "::1")),
        Interface("docker0", ("172.17.0.1",)),
        Interface("br-1a2b", ("172.18.0.1",)),
        Interface("mybridge", ("192.168.122.1",), bridge=True),
        Interface("eth1", ("10.9.9.9",), up=False),
        Interface("eth0", ("169.254.3.4", "fe80::1", "10.0.0.5")),
    ) == ["10.0.0.5"]


def test_loopback_is_offered_only_where_there_is_nothing_else() -> None:
    assert offered(Interface("lo", ("127.0.0.1", "::1"))) == ["127.0.0.1"]


def test_an_address_that_was_given_replaces_all_others_and_has_its_interface() -> None:
    (found,) = addresses.offered("127.0.0.2", "http://127.0.0.1:8000")
    assert (found.address, found.interface, found.family) == ("127.0.0.2", "lo", "ipv4")
    (localhost,) = addresses.offered("localhost", "http://127.0.0.1:8000")
    assert localhost.address in ("127.0.0.1", "::1")


@pytest.mark.parametrize(
    ("setting", "seen"),
    [
        (None, (0, 1, 2)),
        ("", ()),
        ("-1", ()),
        ("2,0", (2, 0)),
        ("0,7,1", (0,)),
        ("0,0", (0,)),
        ("GPU-bb", (1,)),
        ("GPU-", ()),
        (" 1 , 2 ", (1, 2)),
    ],
)
def test_cuda_visible_devices_is_read_as_cuda_reads_it(setting: str | None, seen: tuple[int, ...]) -> None:
    assert gpus.visible(setting, ("GPU-aa1", "GPU-bb2", "GPU-cc3")) == seen


def test_facts_are_gathered_without_torch(tmp_path: Path) -> None:
    environment = {
        "HOME": "/home/x",
        "HF_HOME": "/data/.cache/huggingface",
        "HF_HUB_CACHE": "/baked/hub",
        "RANK": "1",
        "MASTER_ADDR": "10.0.0.1",
        "TORCHELASTIC_RUN_ID": "none",
        "RANKCALL_NODES": "2",
        "HTTPS_PROXY": "http://user:pass@proxy:3128",
    }
    found = facts.gather(tmp_path / "not/yet", sys.executable, environment)
    assert found.problems == ()
    assert found.python is not None
    assert found.packages["rankcall"]
    assert found.leftovers == {"RANK": "1", "MASTER_ADDR": "10.0.0.1", "TORCHELASTIC_RUN_ID": "none"}
    assert found.proxies == {"HTTPS_PROXY": "http://***@proxy:3128"}
    assert found.cache_environment == {"HF_HOME": "/data/.cache/huggingface", "HF_HUB_CACHE": "/baked/hub"}
    disks = {disk.purpose: disk.path for disk in found.disks}
    assert disks == {
        "state": str(tmp_path / "not/yet"),
        "hf_home": "/data/.cache/huggingface",
        "hub_cache": "/baked/hub",
        "datasets_cache": "/data/.cache/huggingface/datasets",
        "shm": "/dev/shm",
    }
    assert all(disk.total_bytes > 0 for disk in found.disks)
    assert found.limits["nofile"] != 0
    assert not found.torch_ready


def test_versions_are_those_of_the_training_interpreter(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    found = facts.gather(tmp_path, str(python), {})
    assert found.packages["rankcall"]
    broken = facts.gather(tmp_path, "/nowhere/python", {})
    assert broken.packages == {}
    assert "RANKCALL_PYTHON=/nowhere/python" in broken.problems[0]


def test_what_torch_says_is_laid_over_what_the_driver_says() -> None:
    driver = Facts(
        packages={"torch": "2.9.1", "axolotl": "0.19.0"},
        driver="580.126.09",
        gpus=(
            GpuFacts(index=0, name="old name", memory_bytes=5, uuid="GPU-1"),
            GpuFacts(index=1, name="b", uuid="GPU-2"),
        ),
        problems=("one",),
    )
    merged = facts.merge(
        driver,
        {
            "packages": {"torch": "2.9.1+cu130"},
            "cuda": "13.0",
            "torch_ready": True,
            "arch_list": ["sm_120"],
            "gpus": [{"index": 0, "name": "RTX 5090", "uuid": "GPU-1", "compute_capability": "12.0"}],
            "problems": ["two"],
        },
    )
    assert merged.torch_ready
    assert merged.packages == {"torch": "2.9.1+cu130", "axolotl": "0.19.0"}
    assert (merged.cuda, merged.driver, merged.arch_list) == ("13.0", "580.126.09", ("sm_120",))
    (gpu,) = merged.gpus
    assert (gpu.name, gpu.memory_bytes, gpu.compute_capability) == ("RTX 5090", 5, "12.0")
    assert merged.problems == ("one", "two")
    absent = facts.merge(driver, {"torch_ready": False, "problems": ["No module named 'torch'"]})
    assert not absent.torch_ready
    assert len(absent.gpus) == 2


@pytest.mark.parametrize(
    ("environment", "hostname", "ordinal"),
    [
        ({"NODE_RANK": "3"}, "x", 3),
        ({"JOB_COMPLETION_INDEX": "0"}, "x", 0),
        ({"NODE_RANK": "three"}, "x", None),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "rankcall-2", 2),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "rankcall-7d4b9-24567", None),
        ({}, "rankcall-2", None),
    ],
)
def test_the_platforms_ordinal_is_believed_only_where_it_is_one(
    environment: dict[str, str], hostname: str, ordinal: int | None
) -> None:
    assert platform_ordinal(environment, hostname) == ordinal


@pytest.mark.parametrize(
    ("name", "value"), [("RANKCALL_PORT", "eighty"), ("RANKCALL_NODES", "0"), ("RANKCALL_ORDINAL", "-1")]
)
def test_a_setting_that_cannot_be_is_named(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError, match=name):
        AgentSettings.from_environment()


def test_the_cpu_time_of_a_training_is_that_of_its_whole_tree(tmp_path: Path) -> None:
    busy = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'while True: pass'])"
    parent = subprocess.Popen([sys.executable, "-c", busy], start_new_session=True)
    try:
        root = process.identify(parent.pid)
        assert root is not None
        meter = Meter(tmp_path, {})
        waited = threading.Event()
        for _ in range(100):
            reading = meter.read((root,))
            assert reading.training_cpu_s is not None
            if reading.training_cpu_s > 0.5:
                break
            waited.wait(0.2)
            meter = Meter(tmp_path, {})
        assert reading.training_cpu_s > 0.5
        assert reading.agent_rss_bytes is not None
        assert reading.memory_total_bytes is not None
    finally:
        os.killpg(parent.pid, 9)
        parent.wait()
    assert Meter(tmp_path, {}).read(()).training_cpu_s is None


def test_importing_the_agent_loads_neither_torch_nor_the_coordinators_frameworks() -> None:
    program = (
        "import sys, agent.main, agent.start\n"
        "heavy = {'torch', 'fastapi', 'starlette', 'sqlmodel', 'sqlalchemy', 'alembic', 'uvicorn', 'jinja2'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    said = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert said.stdout.strip() == "[]"
