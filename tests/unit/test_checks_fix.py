"""`--fix` mends what has one right answer, touches nothing else, and keeps comments and order."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coordinator.checks import BundleFiles, FolderFiles, check
from coordinator.checks.fix import Fixed, fix
from coordinator.checks.gpus import gpu_of
from coordinator.checks.keys import key_table
from coordinator.core import yaml
from coordinator.core.protocol import BundleFile
from coordinator.core.views import Submission, SubmittedFile

CASES = Path(__file__).parent / "data" / "cases"
GOOD = "base_model: NousResearch/Llama-3.2-1B\ndatasets:\n  - path: tatsu-lab/alpaca\n    type: alpaca\nlearning_rate: 2e-4\n"


def mend(config: str, launch: str | None = None, files: dict[str, bytes] | None = None) -> Fixed:
    submission = Submission(
        config=config,
        config_name="config.yml",
        accelerate=SubmittedFile(name="acc.yaml", text=launch) if launch is not None else None,
        files=tuple(BundleFile(path=path, data=data) for path, data in (files or {}).items()),
    )
    return fix(submission, files=BundleFiles(submission))


def mended_case(case: str) -> Fixed:
    folder = CASES / case
    launch = folder / "accelerate_config.yaml"
    submission = Submission(
        config=(folder / "axolotl.yml").read_text(),
        config_name="axolotl.yml",
        accelerate=SubmittedFile(name=launch.name, text=launch.read_text()),
    )
    return fix(submission, files=FolderFiles(folder))


@pytest.mark.parametrize(
    ("case", "file", "holds"),
    [
        ("f01_pdsh_default", "accelerate_config.yaml", "  deepspeed_multinode_launcher: standard\n"),
        ("f05_ds_file_typo_accelerate", "accelerate_config.yaml", "deepspeed_configs/zero2.json\n"),
        ("f07_mixed_precision_unquoted_no", "accelerate_config.yaml", "mixed_precision: 'no'\n"),
        ("f15_unknown_key_typo", "accelerate_config.yaml", "main_process_ip: 10.0.9.59\n"),
        (
            "f16_pasted_from_web_lost_layout",
            "accelerate_config.yaml",
            "deepspeed_config:\n  deepspeed_config_file: ",
        ),
        (
            "f17_deepspeed_keys_dedented",
            "accelerate_config.yaml",
            "deepspeed_config:\n  deepspeed_config_file: ",
        ),
        ("f21_zero3_accelerate_only_fullft", "axolotl.yml", "deepspeed: deepspeed_configs/zero3.json\n"),
        ("f23_axolotl_key_typo", "axolotl.yml", "micro_batch_size: 8\n"),
        ("f27_ds_json_trailing_comma", "ds.json", '"auto"\n}'),
        ("f29_ds_json_batch_mismatch", "ds.json", '"gradient_accumulation_steps": "auto"'),
        ("f37_sharegpt_type", "axolotl.yml", "    type: chat_template\n    field_messages: conversations\n"),
        ("f45_launcher_typo", "accelerate_config.yaml", "deepspeed_multinode_launcher: standard\n"),
    ],
)
def test_a_case_with_one_right_answer_is_mended_and_then_accepted(case: str, file: str, holds: str) -> None:
    done = mended_case(case)
    assert done.verdict.verdict == "accept", [found.message for found in done.verdict.findings]
    assert list(done.files) == [file]
    assert holds in done.files[file]
    assert done.mended


@pytest.mark.parametrize(
    "case", ["f09_num_processes_not_divisible", "f25_gas_and_batch_size", "f43_duplicate_key"]
)
def test_where_two_answers_could_be_right_nothing_is_touched(case: str) -> None:
    done = mended_case(case)
    assert done.files == {}
    assert done.verdict.verdict == "reject"


def test_a_good_file_is_left_as_it_is() -> None:
    assert mend(GOOD).files == {}


def test_comments_order_quotes_and_spacing_are_kept() -> None:
    config = (
        "# My run, do not touch\n"
        "base_model: 'NousResearch/Llama-3.2-1B'   # small\n"
        "\n"
        "micro_batchsize: 8   # as large as fits\n"
        "# where it goes\n"
        'output_dir: "./out"\n'
        "datasets:\n"
        "  - path: tatsu-lab/alpaca   # public\n"
        "    type: alpaca\n"
        "learning_rate: 1e-4\n"
        "list: [1,  2]\n"
        "flag: no\n"
    )
    # A comment at a line's end keeps its column; a list in line loses its second space.
    expected = config.replace("micro_batchsize: 8   #", "micro_batch_size: 8  #").replace("[1,  2]", "[1, 2]")
    assert mend(config).files["config.yml"] == expected


def test_a_comment_below_what_is_removed_stays() -> None:
    launch = (
        "distributed_type: DEEPSPEED\nnum_machines: 2\nnum_processes: 2\nmachine_rank: 0\n"
        "mixed_precision: bf16  # gone with its key\n"
        "# the master, asked from the provider\n"
        "main_process_ip: 10.0.9.59\n"
        "deepspeed_config:\n"
        "  deepspeed_multinode_launcher: standard\n"
        "  deepspeed_config_file: deepspeed_configs/zero2.json\n"
    )
    after = mend(GOOD, launch).files["acc.yaml"]
    assert "mixed_precision" not in after
    assert "machine_rank: 0\n# the master, asked from the provider\nmain_process_ip" in after


def test_lists_keep_their_indentation() -> None:
    flat = GOOD.replace("  - path", "- path").replace("    type", "  type") + "micro_batchsize: 2\n"
    assert mend(flat).files["config.yml"] == flat.replace("batchsize", "batch_size")


def test_a_new_name_is_not_written_over_one_that_is_there() -> None:
    done = mend(GOOD + "micro_batchsize: 2\nmicro_batch_size: 4\n")
    assert done.files == {}


def test_tabs_become_spaces() -> None:
    done = mend(GOOD + "trl:\n\tbeta: 0.1\n")
    assert done.files["config.yml"].endswith("trl:\n  beta: 0.1\n")


@pytest.mark.parametrize(
    ("written", "mended"),
    [
        ("trl:\n    beta: 0.1\n\tmax_length: 8\n", "trl:\n    beta: 0.1\n    max_length: 8\n"),
        ("trl:\n        beta: 0.1\n\tmax_length: 8\n", "trl:\n        beta: 0.1\n        max_length: 8\n"),
        ("trl:\n\tbeta:0.1\n\tmax_length: 8\n", "trl:\n  beta: 0.1\n  max_length: 8\n"),
    ],
)
def test_a_tab_is_as_wide_as_it_was_meant(written: str, mended: str) -> None:
    done = mend(GOOD + written)
    assert done.files["config.yml"] == GOOD + mended


@pytest.mark.parametrize(
    "written",
    [
        "trl:\n   beta: 0.1\n\tmax_length: 8\n",
        "trl:\n   beta: 0.1\n \t\tmax_length: 8\n     x: [\n",
        "chat_template: |\n  a\n  \tb\ntrl:\n\tbeta: 0.1\n",
    ],
)
def test_tabs_that_could_mean_nothing_or_several_things_are_left(written: str) -> None:
    done = mend(GOOD + written)
    assert done.files == {} and done.mended == ()


def test_a_mend_that_would_make_an_error_is_left_undone() -> None:
    config = GOOD + "eval_table_size: 2\nmicro_batchsize: 4\n"
    before = mend(GOOD + "eval_table_size: 2\n")
    assert before.verdict.verdict == "accept" and before.files == {} and before.mended == ()
    done = mend(config)
    assert done.files["config.yml"] == config.replace("batchsize", "batch_size")
    assert [found.key for found in done.mended] == ["micro_batchsize"]


def test_line_endings_are_kept() -> None:
    for config in (
        GOOD + "micro_batchsize: 2   # as large as fits\ntrl: {beta: 0.1}\n",
        GOOD + "trl:\n\tbeta: 0.1\n",
        GOOD + "output_dir:out\n",
    ):
        text = mend(config).files["config.yml"]
        assert mend(config.replace("\n", "\r\n")).files["config.yml"] == text.replace("\n", "\r\n")
    json_text = '{\r\n  "zero_optimization": {"stage": 2},\r\n  "train_micro_batch_size_per_gpu": 64\r\n}\r\n'
    text = mend(GOOD + "deepspeed: ds.json\n", files={"ds.json": json_text.encode()}).files["ds.json"]
    assert text.count("\r\n") == text.count("\n") > 2


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(
        st.tuples(
            st.sampled_from(sorted(key_table().keys)),
            st.integers(0, 30),
            st.sampled_from(["2", "true", "text", "[a]", "{a: 1}", "", "0.5", "!!set {a}"]),
        ),
        max_size=4,
    )
)
def test_what_is_mended_reads_and_has_no_error_that_was_not_there(
    written: list[tuple[str, int, str]],
) -> None:
    """Keys with one letter left out, which may come near to others than were meant."""
    lines = "".join(f"{key[:at]}{key[at + 1 :]}: {value}\n" for key, at, value in written)
    submission = Submission(config=GOOD + lines)
    before = check(submission, files=BundleFiles(submission))
    done = fix(submission, files=BundleFiles(submission))
    assert before.verdict == "reject" or done.verdict.verdict == "accept"
    for text in done.files.values():
        assert yaml.load(text)
    assert done.files == {} or done.mended


def test_text_that_yaml_would_read_otherwise_is_quoted() -> None:
    done = mend(GOOD, "distributed_type: MULTI_GPU\nnum_processes: 2\nmixed_precision: off\n")
    assert "mixed_precision: 'no'" in done.files["acc.yaml"]


def test_a_json_file_keeps_its_indentation() -> None:
    before = {"zero_optimization": {"stage": 2}, "train_micro_batch_size_per_gpu": 64}
    done = mend(GOOD + "deepspeed: ds.json\n", files={"ds.json": json.dumps(before, indent=4).encode()})
    assert (
        done.files["ds.json"]
        == json.dumps(before | {"train_micro_batch_size_per_gpu": "auto"}, indent=4) + "\n"
    )


def test_a_plugin_is_added_to_those_there_are() -> None:
    done = mend(GOOD + "plugins:\n  - mine.Plugin\nliger_rope: true\n")
    assert "- mine.Plugin\n  - axolotl.integrations.liger.LigerPlugin\n" in done.files["config.yml"]


ACCELERATE = """\
compute_environment: LOCAL_MACHINE
distributed_type: DEEPSPEED
num_machines: 2
num_processes: 2
machine_rank: 0
main_process_ip: 10.0.0.4
deepspeed_config:
  deepspeed_config_file: deepspeed_configs/zero2_bf16.json
  deepspeed_multinode_launcher: standard
  zero3_init_flag: false
"""
ZERO_1 = b'{"zero_optimization": {"stage": 1}, "bf16": {"enabled": "auto"}}'


def test_a_missing_deepspeed_file_becomes_the_one_that_the_axolotl_config_names() -> None:
    """It wins anyway; the nearest preset would be another one."""
    for other in ("ds/mine.json", "deepspeed_configs/zero1.json"):
        done = mend(GOOD + f"deepspeed: {other}\n", ACCELERATE, {"ds/mine.json": ZERO_1})
        assert f"deepspeed_config_file: {other}\n" in done.files["acc.yaml"]
        assert done.verdict.verdict == "accept", [one.message for one in done.verdict.findings]
        (missing,) = [one for one in done.mended if one.code == "CFG020"]
        assert missing.hint == f"write {other}, which the Axolotl config names"


def test_without_another_a_missing_deepspeed_file_becomes_the_nearest_that_is_there() -> None:
    done = mend(GOOD, ACCELERATE, {"ds/mine.json": ZERO_1})
    assert "deepspeed_config_file: deepspeed_configs/zero2.json\n" in done.files["acc.yaml"]


def test_a_byte_order_mark_is_taken_out_of_a_deepspeed_file() -> None:
    done = mend(GOOD + "deepspeed: ds.json\n", files={"ds.json": b"\xef\xbb\xbf" + ZERO_1})
    assert done.files == {"ds.json": ZERO_1.decode()}
    assert [one.code for one in done.mended] == ["CFG023"] and done.verdict.verdict == "accept"


def test_what_the_gpus_cannot_do_is_mended_for_the_gpu_that_is_named() -> None:
    given = Submission(config=GOOD + "bf16: true\n", config_name="config.yml")
    done = fix(given, files=BundleFiles(given), gpu=gpu_of("Tesla T4"))
    assert "bf16: false\n" in done.files["config.yml"] and "fp16: true\n" in done.files["config.yml"]
    assert not fix(given, files=BundleFiles(given), gpu=gpu_of("A100")).files
