"""Axolotl's own word on a submission: the real coordinator and the real Axolotl in its process."""

from __future__ import annotations

import time
from pathlib import Path

import psutil
import pytest
from serving import running

from coordinator.core import yaml

pytestmark = pytest.mark.training

CONFIG: dict[str, object] = {
    "base_model": "org/model",
    "datasets": [{"path": "org/data", "type": "alpaca"}],
    "learning_rate": 0.0002,
    "output_dir": "./outputs",
    "adapter": "lora",
    "lora_r": 8,
    "lora_alpha": 16,
    "lora_target_linear": True,
}
# What no rule of ours knows: a validator of DeepSpeed's own.
PARTLY = {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu", "ratio": 0.5}}}
IMPORT_S = 200.0


@pytest.mark.long
def test_a_submission_that_only_axolotl_or_deepspeed_refuses_queues_nothing(tmp_path: Path) -> None:
    with running(tmp_path, axolotl_wait_s=20.0) as service, service.client() as client:

        def submit(**more: object) -> tuple[int, list[dict[str, str]]]:
            answer = client.post("/api/v1/jobs", json={"config": yaml.dump({**CONFIG, **more})})
            return answer.status_code, answer.json()["findings"]

        def jobs() -> list[str]:
            return [one["id"] for one in client.get("/api/v1/jobs").json()["items"]]

        end_s = time.monotonic() + IMPORT_S
        # Other work may go on beside the tests: the import may take longer than a submission waits for it.
        while any(one["code"] == "CFG902" for one in submit()[1]):
            assert time.monotonic() < end_s
            time.sleep(1)
        before = jobs()
        status, findings = submit(deepspeed=PARTLY)
        errors = [one for one in findings if one["severity"] == "error"]
        assert status == 422
        assert [(one["code"], one["key"]) for one in errors] == [("CFG904", "deepspeed.zero_optimization")]
        assert jobs() == before
        assert submit() == (201, [])
        (worker,) = [
            one for one in psutil.Process().children() if "axolotl_worker.py" in " ".join(one.cmdline())
        ]
        assert worker.nice() >= 10, "it stands back behind the training"
        assert Path(f"/proc/{worker.pid}/oom_score_adj").read_text().strip() == "1000"
    assert not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE
