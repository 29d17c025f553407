"""What a training left: found, hashed, and looked through for tensors that are not whole."""

from __future__ import annotations

import contextlib
import hashlib
import json
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent import leftovers
from agent.collect import Damaged, collect, kind_of, read_header


def safetensors(path: Path, tensors: dict[str, list[int]], *, cut: int = 0) -> Path:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, shape in tensors.items():
        size = 4
        for one in shape:
            size *= one
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    raw = json.dumps(header).encode()
    whole = struct.pack("<Q", len(raw)) + raw + bytes(at)
    path.write_bytes(whole[: len(whole) - cut])
    return path


@pytest.fixture
def work(tmp_path: Path) -> Path:
    (tmp_path / "outputs/lora-out/checkpoint-10").mkdir(parents=True)
    return tmp_path


def test_files_of_the_result_are_found_hashed_and_named_by_kind(work: Path) -> None:
    folder = work / "outputs/lora-out"
    safetensors(folder / "adapter_model.safetensors", {"a": [2, 3], "b": [4]})
    for name in ("adapter_config.json", "tokenizer.json", "README.md"):
        (folder / name).write_text(name)
    safetensors(folder / "checkpoint-10/adapter_model.safetensors", {"a": [1]})
    result, findings = collect(work, "./outputs/lora-out")
    assert findings == ()
    assert {one.path: one.kind for one in result.artifacts} == {
        "outputs/lora-out/adapter_model.safetensors": "adapter",
        "outputs/lora-out/adapter_config.json": "config",
        "outputs/lora-out/tokenizer.json": "tokenizer",
        "outputs/lora-out/README.md": "other",
    }
    (readme,) = (one for one in result.artifacts if one.kind == "other")
    assert readme.sha256 == hashlib.sha256(b"README.md").hexdigest()
    assert readme.size_bytes == 9
    assert (result.tensors, result.empty_tensors) == (2, ())


def test_tensors_saved_without_their_weights_are_named(work: Path) -> None:
    safetensors(work / "outputs/model.safetensors", {"layers.0.w": [0], "layers.1.w": [3, 0], "norm": [8]})
    result, findings = collect(work, "outputs")
    assert findings == ()
    assert result.tensors == 3
    assert result.empty_tensors == ("layers.0.w", "layers.1.w")


@pytest.mark.parametrize("cut", [1, 16, 40, 10_000])
def test_a_file_that_was_cut_short_is_a_finding(work: Path, cut: int) -> None:
    safetensors(work / "outputs/model.safetensors", {"w": [4]}, cut=cut)
    _, findings = collect(work, "outputs")
    assert [found.code for found in findings] == ["RUN023"]
    assert findings[0].file == "outputs/model.safetensors"


def test_shards_that_an_index_names_and_that_are_missing_are_a_finding(work: Path) -> None:
    safetensors(work / "outputs/model-00001-of-00002.safetensors", {"a": [1]})
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (work / "outputs/model.safetensors.index.json").write_text(json.dumps(index))
    _, findings = collect(work, "outputs")
    assert [found.code for found in findings] == ["RUN023"]
    assert "model-00002-of-00002.safetensors" in findings[0].message


@pytest.mark.parametrize("output_dir", ["../elsewhere", "outputs/../../x", "link"])
def test_an_output_folder_outside_the_jobs_own_is_refused(work: Path, output_dir: str) -> None:
    (work / "link").symlink_to(work.parent)
    result, findings = collect(work, output_dir)
    assert result.artifacts == ()
    assert [found.code for found in findings] == ["RUN005"]


def test_links_that_lead_out_of_the_output_folder_are_left_alone(work: Path) -> None:
    (work.parent / "secret").write_text("secret")
    (work / "outputs/model.safetensors").symlink_to(work.parent / "secret")
    result, _ = collect(work, "outputs")
    assert result.artifacts == ()


def test_an_output_folder_that_is_not_there_is_an_empty_result(work: Path) -> None:
    result, findings = collect(work, "nothing/here")
    assert (result.artifacts, findings) == ((), ())


@given(raw=st.binary(max_size=200))
def test_whatever_is_called_safetensors_is_read_or_called_damaged(
    tmp_path_factory: pytest.TempPathFactory, raw: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.safetensors"
    path.write_bytes(raw)
    with contextlib.suppress(Damaged):
        assert read_header(path).count >= 0


@given(
    header=st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.just([0, 4]) | st.just("F32"),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["a", "shape", "dtype", "data_offsets", "__metadata__"]), inner, max_size=4
            )
        ),
        max_leaves=12,
    )
)
def test_headers_of_any_json_are_read_or_called_damaged(
    tmp_path_factory: pytest.TempPathFactory, header: object
) -> None:
    raw = json.dumps(header).encode()
    path = tmp_path_factory.getbasetemp() / "json.safetensors"
    path.write_bytes(struct.pack("<Q", len(raw)) + raw + bytes(4))
    with contextlib.suppress(Damaged):
        read_header(path)


def test_a_header_nested_without_end_is_damaged(tmp_path: Path) -> None:
    raw = b"[" * 200_000
    path = tmp_path / "deep.safetensors"
    path.write_bytes(struct.pack("<Q", len(raw)) + raw)
    with pytest.raises(Damaged):
        read_header(path)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("model-00001-of-00003.safetensors", "model"),
        ("pytorch_model.bin", "model"),
        ("adapter_model.bin", "adapter"),
        ("model.safetensors.index.json", "config"),
        ("special_tokens_map.json", "tokenizer"),
        ("chat_template.jinja", "tokenizer"),
        ("generation_config.json", "config"),
        ("training_args.bin", "other"),
    ],
)
def test_kinds_follow_the_names_of_hugging_face(name: str, kind: str) -> None:
    assert kind_of(name) == kind


# --- what an attempt before has left in the same folder


def test_only_what_the_attempt_has_written_is_its_result(work: Path) -> None:
    folder, attempt = work / "outputs", work / "attempt-2"
    attempt.mkdir()
    safetensors(folder / "model.safetensors", {"a": [1]})
    safetensors(folder / "model-00002-of-00002.safetensors", {"b": [1]})
    (folder / "notes.txt").write_text("of last week")
    leftovers.note(folder, attempt)
    safetensors(folder / "model.safetensors", {"a": [1]})  # the same bytes, written anew
    (folder / "notes.txt").touch()
    (folder / "config.json").write_text("{}")
    leftovers.note(folder, attempt)  # once more, and too late
    result, findings = collect(work, "outputs", before=leftovers.noted(attempt))
    names = [Path(one.path).name for one in result.artifacts]
    assert names == ["config.json", "model.safetensors", "notes.txt"]
    (aside,) = findings
    assert (aside.code, aside.severity) == ("RUN029", "note")
    assert aside.evidence["left_aside"] == ["model-00002-of-00002.safetensors"]


def test_a_model_from_before_is_not_the_one_of_an_attempt_that_saved_none(work: Path) -> None:
    folder, attempt = work / "outputs", work / "attempt-2"
    attempt.mkdir()
    safetensors(folder / "model.safetensors", {"a": [1]})
    leftovers.note(folder, attempt)
    (folder / "config.json").write_text("{}")
    result, findings = collect(work, "outputs", before=leftovers.noted(attempt))
    assert [one.kind for one in result.artifacts] == ["config"]
    assert [(one.code, one.severity) for one in findings] == [("RUN005", "error")]
    assert "model.safetensors was there before it began" in findings[0].message


def test_shards_from_before_do_not_complete_an_index_that_is_new(work: Path) -> None:
    folder, attempt = work / "outputs", work / "attempt-2"
    attempt.mkdir()
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    for name in index["weight_map"].values():
        safetensors(folder / name, {"a": [1]})
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    leftovers.note(folder, attempt)
    _, findings = collect(work, "outputs", before=leftovers.noted(attempt))
    assert [one.code for one in findings] == ["RUN005"]
    safetensors(folder / "model-00001-of-00002.safetensors", {"a": [1]})
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    _, findings = collect(work, "outputs", before=leftovers.noted(attempt))
    assert [one.code for one in findings] == ["RUN023", "RUN029"]
    assert findings[0].evidence["missing"] == ["model-00002-of-00002.safetensors"]


@pytest.mark.parametrize("content", ["", "[]", '{"a": 1}', '{"a": [1, 2]}', '{"a": ["x", 1, 1, 1]}', "\x00"])
def test_a_note_that_is_none_says_nothing(tmp_path: Path, content: str) -> None:
    tmp_path.joinpath(leftovers.NOTE).write_text(content)
    assert leftovers.noted(tmp_path) == {}
    assert leftovers.noted(tmp_path / "nowhere") == leftovers.states(tmp_path / "nowhere") == {}
