"""The job's files reach the disk as they were checked, or not at all."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.files import NotPlaced, place_bundle, place_rendered, secrets_of_attempt
from coordinator.core.paths import AttemptFolder, Layout
from coordinator.core.protocol import AttemptPlan, Bundle, BundleFile, RenderedFile, bundle_sha256

FILES = (
    BundleFile(path="train.jsonl", data=b'{"a": 1}\n' * 1000),
    BundleFile(path="base/config.json", data=b"{}"),
    BundleFile(path="odd name/ü.bin", data=bytes(range(256))),
)


def plan(sha256: str | None) -> AttemptPlan:
    return AttemptPlan(
        job_id="abcdef01",
        attempt_id="abcdef01-1",
        number=1,
        rank=0,
        nodes=1,
        gpus_per_node=0,
        world_size=1,
        bundle_sha256=sha256,
    )


class Service:
    """Hands out a bundle in small pieces, and counts how often."""

    def __init__(self, *files: BundleFile, cut: int | None = None) -> None:
        self._raw = Bundle(files=files).model_dump_json().encode()[:cut]
        self.asked = 0

    async def fetch(self, into: Callable[[bytes], object]) -> None:
        self.asked += 1
        for start in range(0, len(self._raw), 100):
            into(self._raw[start : start + 100])


def place(layout: Layout, service: Service, sha256: str | None) -> None:
    asyncio.run(place_bundle(plan(sha256), layout, service.fetch))


def test_a_bundle_is_fetched_once_and_kept_over_attempts(tmp_path: Path) -> None:
    layout, service = Layout(tmp_path), Service(*FILES)
    for _ in range(3):
        place(layout, service, bundle_sha256(FILES))
    assert service.asked == 1
    for file in FILES:
        assert (layout.work("abcdef01") / file.path).read_bytes() == file.data


def test_a_job_without_a_bundle_has_an_empty_work_folder(tmp_path: Path) -> None:
    place(Layout(tmp_path), Service(), None)
    assert list(Layout(tmp_path).work("abcdef01").iterdir()) == []


def test_a_bundle_with_another_hash_or_cut_short_is_refused_and_asked_for_again(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    with pytest.raises(NotPlaced, match="another hash"):
        place(layout, Service(*FILES), "0" * 64)
    with pytest.raises(NotPlaced, match="damaged"):
        place(layout, Service(*FILES, cut=-5), bundle_sha256(FILES))
    assert list(layout.work("abcdef01").iterdir()) == []
    place(layout, Service(*FILES), bundle_sha256(FILES))


@pytest.mark.parametrize("path", ["/tmp/x", "../x", "a/../../x", "link/x"])
def test_a_bundle_cannot_write_outside_its_folder(tmp_path: Path, path: str) -> None:
    layout = Layout(tmp_path / "state")
    layout.work("abcdef01").mkdir(parents=True)
    (layout.work("abcdef01") / "link").symlink_to(tmp_path)
    files = (BundleFile(path=path, data=b"x"),)
    with pytest.raises(NotPlaced, match="bundle"):
        place(layout, Service(*files), bundle_sha256(files))
    assert not (tmp_path / "x").exists()


def test_rendered_files_are_written_with_the_hash_they_should_have(tmp_path: Path) -> None:
    attempt = AttemptFolder(tmp_path / "attempt-1")
    content = "machine_rank: 0\n"
    digest = hashlib.sha256(content.encode()).hexdigest()
    good = RenderedFile(path="accelerate.yaml", content=content, sha256=digest)
    place_rendered((good, good), attempt)
    assert (attempt.root / "accelerate.yaml").read_text() == content
    for bad in (
        good.model_copy(update={"content": "machine_rank: 1\n"}),
        good.model_copy(update={"path": "../accelerate.yaml"}),
    ):
        with pytest.raises(NotPlaced):
            place_rendered((bad,), attempt)


def test_an_agent_that_takes_over_knows_the_secrets_of_what_runs_before_anybody_tells_it(
    tmp_path: Path,
) -> None:
    attempt = AttemptFolder(tmp_path)
    (tmp_path / "axolotl.yaml").write_text("base_model: x\nhub_token: secret-of-the-config\n")
    (tmp_path / "broken.yaml").write_text("a: [")
    task = attempt.task("train")
    task.mkdir(parents=True)
    (task / "spec.json").write_text(json.dumps({"environment": {"HF_TOKEN": "secret-of-the-environment"}}))
    attempt.task("prepare").mkdir()
    (attempt.task("prepare") / "spec.json").write_text("{")
    assert secrets_of_attempt(attempt) == ("secret-of-the-config", "secret-of-the-environment")
