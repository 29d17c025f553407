"""Replicas whose prepared data differs are told apart by its digest, whatever files it lies in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agent.prepare import describe, main

pytestmark = pytest.mark.training

ROWS = [{"input_ids": [1, 2, 3 + row], "labels": [-100, 2, 3], "text": f"row {row}"} for row in range(2500)]


def made(rows: list[dict[str, Any]]) -> Any:
    import datasets  # takes seconds, which every process would spend that collects this file

    return datasets.Dataset.from_list(rows)


def test_the_same_rows_have_the_same_digest_however_they_are_stored() -> None:
    import datasets

    whole = describe(made(ROWS), None)
    pieces = datasets.concatenate_datasets([made(ROWS[:7]), made(ROWS[7:2000]), made(ROWS[2000:])])
    selected = made([*reversed(ROWS)]).select(range(len(ROWS) - 1, -1, -1))
    assert describe(pieces, None) == describe(selected, None) == whole
    assert whole["rows"] == 2500
    assert whole["eval_rows"] is None


@pytest.mark.parametrize(
    "changed",
    [
        [*ROWS[:-1]],
        [ROWS[1], ROWS[0], *ROWS[2:]],
        [*ROWS[:9], {**ROWS[9], "labels": [-100, 2, 4]}, *ROWS[10:]],
        [*ROWS[:9], {**ROWS[9], "input_ids": [1, 2]}, *ROWS[10:]],
        [*ROWS[:9], {**ROWS[9], "text": "another"}, *ROWS[10:]],
    ],
)
def test_any_difference_changes_the_digest(changed: list[dict[str, Any]]) -> None:
    assert describe(made(changed), None)["digest"] != describe(made(ROWS), None)["digest"]


def test_values_moved_between_rows_change_the_digest() -> None:
    left = [{"input_ids": [1, 2]}, {"input_ids": [3]}]
    right = [{"input_ids": [1]}, {"input_ids": [2, 3]}]
    assert describe(made(left), None)["digest"] != describe(made(right), None)["digest"]


def test_evaluation_data_counts_too() -> None:
    train = made(ROWS[:10])
    first, second = describe(train, made(ROWS[10:12])), describe(train, made(ROWS[11:13]))
    assert first["eval_rows"] == second["eval_rows"] == 2
    assert first["digest"] != second["digest"]


def test_a_stream_has_neither_rows_nor_digest() -> None:
    assert describe(made(ROWS).to_iterable_dataset(), None) == {
        "rows": None,
        "eval_rows": None,
        "digest": None,
    }


def test_settings_that_deepspeed_refuses_end_the_prepare_stage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    settings = {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu", "ratio": 0.5}}}
    (tmp_path / "deepspeed.json").write_text(json.dumps(settings))
    (tmp_path / "axolotl.yaml").write_text(f"base_model: b\ndeepspeed: {tmp_path}/deepspeed.json\n")
    assert main([str(tmp_path / "axolotl.yaml")]) == 1
    said = capsys.readouterr().err
    assert "deepspeed.json: DeepSpeed refuses zero_optimization" in said
    assert "Partial offloading" in said
