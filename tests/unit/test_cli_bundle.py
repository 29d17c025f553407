"""What travels with a submission, and what is said when it cannot."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.cli.bundle import BundleLimits, Reference, collect, near_names, references, survey
from coordinator.cli.exits import Exit, Stop


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for path in ("data/train.jsonl", "data/test.jsonl", "zero2.json", "chat.jinja", "base/config.json"):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(path)
    return tmp_path


def names(folder: Path, config: dict[str, object]) -> set[str]:
    return {file.path for file in collect(folder, config)}


@pytest.mark.parametrize(
    ("config", "travels"),
    [
        ({"datasets": [{"path": "./data/train.jsonl"}]}, {"data/train.jsonl"}),
        ({"datasets": [{"path": "data"}]}, {"data/train.jsonl", "data/test.jsonl"}),
        ({"datasets": [{"path": "json", "data_files": ["data/train.jsonl"]}]}, {"data/train.jsonl"}),
        ({"datasets": [{"path": "json", "data_files": "data/*.jsonl"}]}, set()),
        ({"test_datasets": [{"path": "data/test.jsonl"}]}, {"data/test.jsonl"}),
        ({"pretraining_dataset": "data/train.jsonl"}, {"data/train.jsonl"}),
        ({"pretraining_dataset": [{"path": "data/train.jsonl"}]}, {"data/train.jsonl"}),
        ({"deepspeed": "zero2.json"}, {"zero2.json"}),
        ({"deepspeed": "deepspeed_configs/zero2.json"}, set()),
        ({"chat_template_jinja": "chat.jinja"}, {"chat.jinja"}),
        ({"chat_template_jinja": "{% for m in messages %}{{ m.content }}{% endfor %}"}, set()),
        ({"base_model": "./base"}, {"base/config.json"}),
        ({"base_model": "base"}, {"base/config.json"}),
        ({"base_model": "meta-llama/Llama-3.2-1B"}, set()),
        ({"datasets": [{"path": "tatsu-lab/alpaca"}]}, set()),
        ({"datasets": [{"path": "s3://bucket/train.jsonl"}]}, set()),
        ({"datasets": [{"path": "/mnt/volume/train.jsonl"}]}, set()),
        ({"datasets": None, "deepspeed": 3, "base_model": ["x"]}, set()),
        ({"datasets": [None, 7, {"path": None, "data_files": None}]}, set()),
    ],
)
def test_files_the_config_names_travel_and_hub_names_do_not(
    folder: Path, config: dict[str, object], travels: set[str]
) -> None:
    assert names(folder, config) == travels


def test_bytes_travel_as_they_are(folder: Path) -> None:
    (folder / "zero2.json").write_bytes(b"\xff\x00\r\n")
    (file,) = collect(folder, {"deepspeed": "./zero2.json"})
    assert (file.path, file.data) == ("zero2.json", b"\xff\x00\r\n")


def test_the_deepspeed_file_of_an_accelerate_file_travels_too(folder: Path) -> None:
    more = (
        Reference("accelerate.yaml: deepspeed_config.deepspeed_config_file", "zero2.json", must_exist=True),
    )
    assert {file.path for file in collect(folder, {}, more)} == {"zero2.json"}


@pytest.mark.parametrize(
    ("config", "key", "near"),
    [
        ({"datasets": [{"path": "./data/trian.jsonl"}]}, "datasets.0.path", "data/train.jsonl"),
        ({"datasets": [{"path": "train.jsonl"}]}, "datasets.0.path", "data/train.jsonl"),
        (
            {"datasets": [{"path": "json", "data_files": ["data/tset.jsonl"]}]},
            "datasets.0.data_files.0",
            "data/test.jsonl",
        ),
        ({"chat_template_jinja": "chat.jinja2"}, "chat_template_jinja", "chat.jinja"),
    ],
)
def test_a_missing_file_is_named_with_its_key_and_the_nearest_that_is_there(
    folder: Path, config: dict[str, object], key: str, near: str
) -> None:
    with pytest.raises(Stop, match=key) as caught:
        collect(folder, config)
    assert near in caught.value.hint
    assert caught.value.code == Exit.FAILED


def test_a_path_out_of_the_folder_is_refused(folder: Path) -> None:
    outside = folder.parent / f"{folder.name}-outside.jsonl"
    outside.write_text("{}")
    for path in (f"../{outside.name}", "link.jsonl"):
        (folder / "link.jsonl").unlink(missing_ok=True)
        (folder / "link.jsonl").symlink_to(outside)
        with pytest.raises(Stop, match="outside"):
            collect(folder, {"datasets": [{"path": path}]})


def test_links_out_of_a_named_folder_do_not_travel(folder: Path) -> None:
    (folder / "data" / "secret").symlink_to("/etc/passwd")
    (folder / "data" / ".git").mkdir()
    (folder / "data" / ".git" / "config").write_text("x")
    assert names(folder, {"datasets": [{"path": "data"}]}) == {"data/train.jsonl", "data/test.jsonl"}


def test_too_much_is_refused_with_the_limit_and_the_largest(folder: Path) -> None:
    with pytest.raises(Stop, match=r"the limit is 20 B.*data/train.jsonl") as caught:
        collect(folder, {"datasets": [{"path": "data"}]}, limits=BundleLimits(bytes=20))
    assert "volume" in caught.value.hint


def test_too_many_files_are_refused(folder: Path) -> None:
    with pytest.raises(Stop, match="2 files"):
        collect(folder, {"datasets": [{"path": "data"}]}, limits=BundleLimits(files=1))


def test_every_reference_says_where_it_stands() -> None:
    config: dict[str, object] = {
        "datasets": [
            {"path": "a"},
            {"path": "json", "data_files": "b.json", "chat_template_jinja": "c.jinja"},
        ],
        "deepspeed": "d.json",
    }
    assert {(r.key, r.path) for r in references(config)} == {
        ("datasets.0.path", "a"),
        ("datasets.1.data_files", "b.json"),
        ("datasets.1.chat_template_jinja", "c.jinja"),
        ("deepspeed", "d.json"),
    }


def test_nothing_near_is_nothing(folder: Path) -> None:
    assert near_names(folder, "completely-different.bin") == []
    assert near_names(folder / "no-such-folder", "x") == []


def test_what_is_too_much_is_told_without_reading_any_of_it(folder: Path) -> None:
    """Sparse: it has no bytes on the disk, and would take minutes to read."""
    huge = folder / "data" / "huge.jsonl"
    with huge.open("wb") as file:
        file.truncate(1 << 42)
    (found,) = survey(folder, {"datasets": [{"path": "zero2.json"}, {"path": "data/huge.jsonl"}]}).findings
    assert (found.code, found.severity, found.key) == ("CFG026", "error", "datasets.1.path")
    assert "4.0 TiB" in found.message and "data/huge.jsonl" in found.message


def test_a_folder_of_endlessly_many_files_is_not_walked_to_its_end(folder: Path) -> None:
    for number in range(20):
        (folder / "data" / f"{number}.jsonl").write_text("x")
    few = BundleLimits(files=1, looked_at=3)
    seen = survey(folder, {"datasets": [{"path": "data"}]}, limits=few)
    assert len(seen.files) < 6
    assert "more than 3 files" in seen.findings[0].message


def test_every_reason_why_something_cannot_travel_is_told_at_once(folder: Path) -> None:
    (folder / "link.jsonl").symlink_to("/etc/passwd")
    config: dict[str, object] = {
        "datasets": [{"path": "./gone.jsonl"}, {"path": "link.jsonl"}, {"path": "data"}]
    }
    seen = survey(folder, config, name="c.yml")
    assert [(one.code, one.file, one.key) for one in seen.findings] == [
        ("CFG021", "c.yml", "datasets.0.path"), ("CFG025", "c.yml", "datasets.1.path"),
    ]  # fmt: skip
    assert set(seen.files) == {"data/train.jsonl", "data/test.jsonl"}
