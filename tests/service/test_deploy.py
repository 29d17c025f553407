"""The files to deploy with: each parses, says what the README says, and the image's steps work without an engine."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
SCRIPTS = ("deploy/setup", "deploy/demo", "tests/run", ".ci/run")


@pytest.mark.parametrize("script", SCRIPTS)
def test_scripts_are_clean(script: str) -> None:
    subprocess.run(["shellcheck", ROOT / script], check=True)


def test_the_dockerfile_is_clean() -> None:
    subprocess.run([Path(sys.executable).with_name("hadolint"), ROOT / "Dockerfile"], check=True)


def test_the_image_starts_rankcall_up_under_an_init_process() -> None:
    text = (ROOT / "Dockerfile").read_text()
    assert 'ENTRYPOINT ["tini", "-g", "--"]' in text and 'CMD ["rankcall", "up"]' in text


@pytest.mark.long
def test_the_images_installation_step_works_in_a_clean_environment(tmp_path: Path) -> None:
    """The RUN step that installs rankcall, in the folder the COPY steps would make."""
    text = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
    steps = [step for step in re.findall(r"^RUN (.*)$", text, re.M) if "pip install" in step]
    assert len(steps) == 1
    image = tmp_path / "image"
    image.mkdir()
    for copied in re.findall(r"^COPY (.*)$", text, re.M):
        *sources, target = copied.split()
        for source in sources:
            if (ROOT / source).is_dir():
                shutil.copytree(ROOT / source, image / target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(ROOT / source, image / target)
    venv.create(tmp_path / "env", with_pip=True)
    path = f"{tmp_path / 'env' / 'bin'}:/usr/bin:/bin"
    done = subprocess.run(
        ["sh", "-c", steps[0]],
        cwd=image,
        env={"PATH": path},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"\d+\.\d+\.\d+", done.stdout.strip().splitlines()[-1])


def test_compose_starts_every_replica_the_same_way_and_exposes_one_port_on_loopback() -> None:
    compose = yaml.safe_load((ROOT / "deploy/compose.yaml").read_text())
    services = compose["services"]
    assert {tuple(sorted(s["environment"])) for s in services.values()} == {
        tuple(sorted(services["replica-0"]["environment"]))
    }
    assert [port for s in services.values() for port in s.get("ports", [])] == ["127.0.0.1:8000:8000"]


def test_kubernetes_names_every_replica_as_a_peer() -> None:
    service, stateful = yaml.safe_load_all((ROOT / "deploy/kubernetes.yaml").read_text())
    replicas = stateful["spec"]["replicas"]
    container = stateful["spec"]["template"]["spec"]["containers"][0]
    environment = {e["name"]: e.get("value") for e in container["env"]}
    name = stateful["metadata"]["name"]
    assert environment["RANKCALL_PEERS"].split(",") == [
        f"{name}-{n}.{service['metadata']['name']}" for n in range(replicas)
    ]
    assert environment["RANKCALL_NODES"] == str(replicas)
    assert service["spec"]["clusterIP"] == "None" and service["spec"]["publishNotReadyAddresses"]


def test_the_field_reports_own_job_is_accepted() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "coordinator.cli", "check", "deploy/lora-1b.yml", "--nodes", "2"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
