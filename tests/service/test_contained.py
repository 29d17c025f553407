"""Nothing but a job's own files leaves a replica, and no submission names files outside its folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from least import CONFIG
from planted import Planted
from serving import Coordinator, running

from agent.client import Coordinator as Peer
from agent.uploads import Uploads, _opened
from coordinator.core.paths import Layout, PathRefused
from coordinator.core.protocol import UploadRequest

SECRET = b"nobody outside may read this"


@pytest.fixture
def coordinator(tmp_path: Path) -> Iterator[Coordinator]:
    with running(tmp_path / "state") as served:
        yield served


@pytest.fixture
def uploads(tmp_path: Path) -> Uploads:
    layout = Layout(tmp_path / "replica")
    (layout.work("0badcafe") / "outputs").mkdir(parents=True)
    (layout.work("0badcafe") / "outputs" / "model.bin").write_bytes(b"weights")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "kept.bin").write_bytes(b"kept")
    (tmp_path / "secret").write_bytes(SECRET)

    async def nowhere() -> object:
        return None

    return Uploads(layout, [str(tmp_path / "data")], Peer(nowhere, None))


def request(path: str, job_id: str = "0badcafe") -> UploadRequest:
    return UploadRequest(upload_id="u", artifact_id="a", job_id=job_id, path=path)


def test_a_file_of_the_job_or_under_a_root_is_given(uploads: Uploads, tmp_path: Path) -> None:
    assert uploads.resolve(request("outputs/model.bin")).read_bytes() == b"weights"
    assert uploads.resolve(request(str(tmp_path / "data" / "kept.bin"))).read_bytes() == b"kept"


@pytest.mark.parametrize(
    "path",
    [
        "../../secret", "outputs/../../../../secret", "..", ".", "", "outputs", "/etc/passwd", "outputs/link",
        "outputs/links/secret", "outputs/dangling", "outputs/fifo", "a\0b", "%2e%2e/%2e%2e/secret", "..%2fsecret",
        "outputs\\..\\..\\secret", "{data}/link", "{data}/../secret",
    ],
)  # fmt: skip
def test_nothing_else_is(path: str, uploads: Uploads, tmp_path: Path) -> None:
    outputs = tmp_path / "replica" / "jobs" / "0badcafe" / "work" / "outputs"
    (outputs / "link").symlink_to(tmp_path / "secret")
    (outputs / "links").symlink_to(tmp_path)
    (outputs / "dangling").symlink_to(tmp_path / "missing")
    os.mkfifo(outputs / "fifo")
    (tmp_path / "data" / "link").symlink_to(tmp_path / "secret")
    with pytest.raises((PathRefused, OSError, ValueError)):
        uploads.resolve(request(path.format(data=tmp_path / "data")))


@pytest.mark.parametrize("job_id", ["..", "../0badcafe", "/", "", "a/b", ".hidden"])
def test_no_job_id_leads_out_of_the_jobs_folder(job_id: str, uploads: Uploads) -> None:
    with pytest.raises(PathRefused):
        uploads.resolve(request("outputs/model.bin", job_id))


def test_a_link_that_is_put_on_the_way_after_the_look_is_not_followed(
    uploads: Uploads, tmp_path: Path
) -> None:
    resolved = uploads.resolve(request("outputs/model.bin"))
    resolved.unlink()
    resolved.symlink_to(tmp_path / "secret")
    with pytest.raises(OSError):
        _opened(resolved)


@pytest.mark.parametrize(
    "artifact_id",
    ["..%2f..%2fsecret", "%2e%2e", "..", "%00", "a%2fb", "outputs%2fmodel.bin", "%c0%ae%c0%ae", "x" * 65],
)
def test_an_artifact_is_addressed_by_an_id_and_by_nothing_else(
    artifact_id: str, coordinator: Coordinator
) -> None:
    job_id = Planted(coordinator).job_id
    with coordinator.client() as client:
        answer = client.get(f"/api/v1/jobs/{job_id}/artifacts/{artifact_id}")
    assert answer.headers["content-type"] != "application/octet-stream"
    if artifact_id not in ("..", "%2e%2e"):  # these are another address before they are sent
        assert answer.status_code in (404, 422)
    assert SECRET not in answer.content


@pytest.mark.parametrize(
    "setting",
    [
        "output_dir: ../../x", "dataset_prepared_path: ../../x", "base_model: ../m", "base_model_config: ../m",
        "tokenizer_config: ../t", "lora_model_dir: ../l", "resume_from_checkpoint: ../c", "deepspeed: ../x.json",
        "datasets: [{path: ../d.jsonl, type: alpaca}]", "test_datasets: [{path: ../d.jsonl, type: alpaca}]",
        "datasets: [{path: json, data_files: [a.json, ../../z.json], type: alpaca}]",
        "datasets: [{path: json, data_files: a/../../z.json, type: alpaca}]",
    ],
)  # fmt: skip
def test_a_submission_names_no_file_outside_its_folder(setting: str, coordinator: Coordinator) -> None:
    key = setting.partition(":")[0]
    kept = (
        CONFIG.replace("datasets:\n  - path: org/data\n    type: alpaca\n", "")
        if key == "datasets"
        else CONFIG
    )
    lines = [line for line in kept.splitlines() if not line.startswith(f"{key}:")]
    submission = {"config": "\n".join([*lines, setting, ""]), "nodes": 1, "gpus_per_node": 0}
    with coordinator.client() as client:
        refused = client.post("/api/v1/jobs", json=submission)
    assert refused.status_code == 422
    assert any((found["key"] or "").startswith(key) for found in refused.json()["findings"])


@pytest.mark.parametrize(
    "path",
    [
        "/etc/passwd",
        "../x",
        "a/../../x",
        "a\x00b",
        ".",
        "a/\nb",
        "a\x7f",
        "a\x9bb",
        "n" * 256,
        "a/" + "é" * 128 + "/b",
        "/".join(["𝄞" * 60] * 16),
    ],
)
def test_a_bundle_places_no_file_outside_its_folder(path: str, coordinator: Coordinator) -> None:
    submission = {"config": CONFIG, "nodes": 1, "gpus_per_node": 0, "files": [{"path": path, "data": ""}]}
    with coordinator.client() as client:
        refused = client.post("/api/v1/jobs", json=submission)
    assert refused.status_code == 422 and refused.json()["findings"][0]["code"] == "SYS103"
