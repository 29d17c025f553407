"""Every key and value of a DeepSpeed JSON that DeepSpeed's config class refuses is found, wherever it stands."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest
from deepspeed_settings import REFUSED, TAKEN, zero

from coordinator.checks import BundleFiles, check
from coordinator.core.protocol import BundleFile, Finding
from coordinator.core.views import Submission, SubmittedFile
from coordinator.render.presets import PRESETS

CONFIG = """
base_model: NousResearch/Llama-3.2-1B
datasets: [{path: tatsu-lab/alpaca, type: alpaca}]
learning_rate: 0.0002
micro_batch_size: 1
gradient_accumulation_steps: 2
bf16: auto
"""


def findings(settings: Mapping[str, object]) -> tuple[Finding, ...]:
    given = Submission(config=CONFIG, deepspeed=SubmittedFile(name="ds.json", text=json.dumps(settings)))
    return check(given, files=BundleFiles(given)).findings


@pytest.mark.parametrize(("key", "settings"), REFUSED, ids=[key for key, _ in REFUSED])
def test_what_deepspeed_refuses_is_an_error_at_its_key(key: str, settings: dict[str, object]) -> None:
    errors = [one for one in findings(settings) if one.severity == "error"]
    assert [(one.file, one.key) for one in errors] == [("ds.json", key)]


@pytest.mark.parametrize("settings", [*TAKEN, *PRESETS.values()])
def test_what_deepspeed_takes_is_no_error(settings: Mapping[str, object]) -> None:
    assert [one for one in findings(settings) if one.severity == "error"] == []


def test_settings_in_line_are_judged_like_a_file_and_placed_in_the_config() -> None:
    config = (
        CONFIG + "deepspeed:\n  zero_optimization:\n    stage: 2\n    offload_optimizer: {device: cpuu}\n"
    )
    given = Submission(config=config, config_name="c.yml")
    (found,) = [f for f in check(given, files=BundleFiles(given)).findings if f.severity == "error"]
    assert (found.code, found.key) == ("CFG220", "deepspeed.zero_optimization.offload_optimizer.device")
    assert found.line is not None
    assert found.hint == "did you mean `cpu`?"


def test_a_key_that_a_newer_deepspeed_may_have_is_only_warned_about() -> None:
    found = findings(zero(brand_new_setting=1))
    assert [(one.code, one.severity) for one in found] == [("CFG204", "warning")]


def test_a_misspelt_key_at_the_top_is_only_warned_about_because_deepspeed_ignores_it() -> None:
    found = findings({**zero(), "bfloat": {"enabled": True}, "gradient_cliping": 1.0})
    assert {(one.code, one.key, one.severity) for one in found} == {
        ("CFG204", "bfloat", "warning"),
        ("CFG204", "gradient_cliping", "warning"),
    }


def test_elastic_training_is_refused_because_accelerate_adds_a_batch_size() -> None:
    elastic: dict[str, object] = {"enabled": True, "max_train_batch_size": 16, "micro_batch_sizes": [1, 2]}
    codes = {one.code for one in findings({**zero(), "elasticity": elastic})}
    assert "CFG221" in codes
    for allowed in ({"enabled": False}, {**elastic, "ignore_non_elastic_batch_info": True}):
        assert "CFG221" not in {one.code for one in findings({**zero(), "elasticity": allowed})}


def test_a_file_of_the_bundle_is_judged_too() -> None:
    text = json.dumps(zero(offload_optimizer={"device": "gpu"})).encode()
    given = Submission(
        config=CONFIG + "deepspeed: ds/z2.json\n", files=(BundleFile(path="ds/z2.json", data=text),)
    )
    errors = [f for f in check(given, files=BundleFiles(given)).findings if f.severity == "error"]
    assert [(one.code, one.file) for one in errors] == [("CFG220", "ds/z2.json")]
