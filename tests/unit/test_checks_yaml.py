"""Whatever a file holds, the check says what is wrong and where, quickly and in little memory; it never raises."""

from __future__ import annotations

import contextlib
import gc
import random
import resource
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterable, Iterator

import pytest
import yaml as pyyaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coordinator.checks import BundleFiles, accelerate, check, decode
from coordinator.checks.deepspeed_schema import deepspeed_table
from coordinator.checks.fix import fix
from coordinator.checks.keys import key_table
from coordinator.core import yaml
from coordinator.core.protocol import BundleFile, Finding
from coordinator.core.tabs import separating_tab, span_of
from coordinator.core.views import CheckVerdict, Submission, SubmittedFile

GOOD = """\
base_model: NousResearch/Llama-3.2-1B
datasets:
  - path: tatsu-lab/alpaca
    type: alpaca
learning_rate: 2e-4
"""
# Of this process's own time, so that a busy machine does not fail what is quick.
SLOWEST_S = 1.0
MEMORY_BYTES = 200 << 20


@contextlib.contextmanager
def collected() -> Iterator[None]:
    """Without the collector, which now and then walks all that the tests before have left: a second of this thread's time."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextlib.contextmanager
def quick() -> Iterator[None]:
    """What is quadratic or worse takes minutes here; what is not takes milliseconds of this thread's CPU time."""
    with collected():
        began = time.thread_time()
        yield
        assert time.thread_time() - began < SLOWEST_S


def judge(text: str, launch: str | None = None) -> CheckVerdict:
    submission = Submission(
        config=text,
        config_name="config.yml",
        accelerate=SubmittedFile(name="acc.yaml", text=launch) if launch is not None else None,
    )
    return check(submission, files=BundleFiles(submission))


def first(text: str) -> Finding:
    return judge(text).findings[0]


@pytest.mark.parametrize(
    ("text", "code", "line"),
    [
        (GOOD + "lora_target_modules: [q_proj, v_proj\nadapter: lora\n", "CFG001", 7),
        (GOOD + 'output_dir: "./out\n', "CFG001", None),
        (GOOD + "num_epochs:1\n", "CFG002", 6),
        ("base_model: a learning_rate: 1e-4 num_epochs: 1\n", "CFG002", 1),
        ("base_model:a\nlearning_rate:1\n", "CFG002", 1),
        (GOOD + "fsdp_config:\n\toffload_params: true\n", "CFG003", 7),
        (GOOD + "seed: 42\t# the answer\n", "CFG003", 6),
        (GOOD + "output_dir:\tout\n", "CFG003", 6),
        (GOOD + "wandb_tags: [a,\tb]\n", "CFG003", 6),
        (GOOD + "learning_rate: 1e-4\n", "CFG004", 6),
        (GOOD.replace("    type: alpaca", "    type: alpaca\n    type: chat_template"), "CFG004", 5),
        ("", "CFG005", None),
        ("# nothing but a remark\n", "CFG005", None),
        ("- a\n- b\n", "CFG005", 1),
        ("just words\n", "CFG005", 1),
        ("[" * 100_000, "CFG006", 1),
        ("a: &a [x, x]\nb: &b [*a, *a]\n" + "".join(
            f"{chr(99 + i)}: &{chr(99 + i)} [{', '.join([f'*{chr(98 + i)}'] * 9)}]\n" for i in range(12)
        ), "CFG006", None),
        ("a: [" + "0, " * 60_000 + "]\n", "CFG006", 1),
        ("a: " + "9" * 10_000 + "\n", "CFG006", 1),
        ("a: 1" + ":59" * 50_000 + "\n", "CFG006", 1),
        (GOOD + "name: \x07\n", "CFG007", 6),
        (GOOD + "on: true\n", "CFG008", 6),
        (GOOD + "1: one\n", "CFG008", 6),
        (GOOD + "---\nbase_model: b\n", "CFG009", None),
        (GOOD + "date: 2024-02-31\n", "CFG001", None),
        (GOOD + "a: !!python/object/apply:os.system ['true']\n", "CFG001", 6),
        (GOOD + "strict: !!bool maybe\n", "CFG001", 6),
        (GOOD + "seed: !!int ''\n", "CFG001", 6),
        ("!!set {a, b}\n", "CFG005", 1),
        (GOOD + "a: *nothing\n", "CFG001", 6),
        (GOOD + "a: &a [*a]\n", "CFG006", None),
    ],
)  # fmt: skip
def test_a_fault_of_yaml_is_named_with_its_line(text: str, code: str, line: int | None) -> None:
    with quick():
        found = first(text)
    assert found.code == code, (found.code, found.message)
    assert found.severity == "error"
    assert found.file == "config.yml"
    if line is not None:
        assert found.line == line
    assert found.hint


TABBED = (
    "a: 1\t# c\n", "a:\t1\n", "a: {b:\t1}\n", "a: b\tc\n", "a: 'x'\t\n", "a: 1\n  \t\nb: 2\n", "a: x\n  y\tz\n",
    "---\t# c\na: 1\n", "a: &x\t1\n", "a: !!str\t1\n", "a: |\n  x\ty\n", 'a: "x\ty"\n', "# c\tc\na: 1\n", "a: >\n  x\t\n  y\n",
)  # fmt: skip


@pytest.mark.parametrize("text", TABBED)
def test_a_tab_is_refused_exactly_where_axolotls_own_reader_refuses_it(text: str) -> None:
    try:
        pyyaml.safe_load(text)
        taken = True
    except pyyaml.YAMLError:
        taken = False
    try:
        assert yaml.load(text) == pyyaml.safe_load(text)
        assert taken
    except yaml.YamlError:
        assert not taken


@pytest.mark.parametrize("text", TABBED)
def test_a_tab_is_judged_alike_however_long_the_file(text: str) -> None:
    """PyYAML's own scanner is too slow for a long one."""
    long = text.rstrip("\n") + "\n" + "".join(f"filler_{n}: [1, 'x']  # y\n" for n in range(1500))
    assert len(long) > yaml.MAX_SCANNED
    try:
        yaml.load(text)
    except yaml.YamlError as error:
        with pytest.raises(yaml.YamlError, match="a tab is used") as refused:
            yaml.load(long)
        assert (refused.value.line, refused.value.column) == (error.line, error.column)
    else:
        assert yaml.load(long)


PIECES = (
    "a",
    "b:",
    "c: ",
    " ",
    "\n",
    "\n  ",
    "\t",
    "\t",
    "- ",
    " # ",
    "'",
    '"',
    " |\n",
    " >\n",
    "[",
    "]",
    "{",
    "}",
    ", ",
    "x y",
)


@given(st.lists(st.sampled_from(PIECES), max_size=14).map("".join))
@settings(max_examples=400)
def test_the_quick_look_for_tabs_says_what_pyyamls_own_scanner_says(text: str) -> None:
    try:
        events = list(pyyaml.parse(text, Loader=pyyaml.CSafeLoader))
    except pyyaml.YAMLError:
        return  # both readers refuse it
    spans = [span for one in events if isinstance(one, pyyaml.ScalarEvent) and (span := span_of(one, text))]
    try:
        list(pyyaml.parse(text, Loader=pyyaml.SafeLoader))
        taken = True
    except pyyaml.YAMLError as error:
        taken = "\\t" not in str(error)
    assert (separating_tab(text, spans) is None) == taken


def test_a_file_full_of_tabs_takes_no_longer_than_another() -> None:
    def costs_s(line: str) -> float:
        text = GOOD + "".join(line.format(n) for n in range(5_000))
        with collected():
            began = time.thread_time()
            assert "CFG003" not in {one.code for one in judge(text).findings}
            return time.thread_time() - began

    usual_s = costs_s("a_{}: 1\n")
    for line in ("a_{}: 'x\ty'\n", "# {}\tc\tc\n", "a_{}: 1 # c\tc\n"):
        assert costs_s(line) < 5 * usual_s


def test_tabs_before_remarks_are_mended() -> None:
    given = Submission(config=GOOD + "seed: 42\t# the answer\n", config_name="config.yml")
    mended = fix(given, files=BundleFiles(given))
    assert mended.files["config.yml"].endswith("seed: 42  # the answer\n")


def test_a_line_that_swallowed_the_next_is_found() -> None:
    found = first(GOOD + "output_dir: ./out\n  num_epochs:1\n")
    assert found.code == "CFG002"
    assert "num_epochs" in found.message


@pytest.mark.parametrize("rate", ["2e-4", "0.0002", "2.0e-4", "'2e-4'", ".0002"])
def test_a_number_that_yaml_reads_as_text_is_no_fault(rate: str) -> None:
    assert not [f for f in judge(GOOD.replace("2e-4", rate)).findings if f.severity != "note"]


def test_the_same_line_twice_is_only_a_warning() -> None:
    found = [f for f in judge(GOOD + "learning_rate: 2e-4\n").findings if f.code == "CFG004"]
    assert [f.severity for f in found] == ["warning"]


@pytest.mark.parametrize("word", ["no", "No", "NO", "off", "false"])
def test_the_norway_problem_is_found(word: str) -> None:
    launch = f"distributed_type: MULTI_GPU\nnum_processes: 2\nmixed_precision: {word}\n"
    assert "CFG011" in {f.code for f in judge(GOOD, launch).findings}


def test_bytes_that_are_not_utf8_are_named_with_their_line() -> None:
    found = decode("c.yml", b"base_model: a\nname: caf\xe9\n")
    assert isinstance(found, Finding)
    assert (found.code, found.line) == ("CFG007", 2)
    utf16 = decode("c.yml", "base_model: a".encode("utf-16"))
    assert isinstance(utf16, Finding)
    assert "UTF-16" in utf16.message
    assert decode("c.yml", b"\xef\xbb\xbfbase_model: a\n") == "base_model: a\n"


def test_thousands_of_unknown_keys_are_counted_not_compared_one_by_one() -> None:
    text = GOOD + "".join(f"micro_batch_sise_{i}: 1\n" for i in range(5_000))
    with quick():
        verdict = judge(text)
    assert verdict.verdict == "reject"
    assert len(verdict.findings) <= 100


_KNOWN_KEYS = st.sampled_from(
    """
    base_model datasets learning_rate deepspeed fsdp_config fsdp adapter lora_r load_in_4bit bf16 fp16
    plugins trl rl test_datasets pretraining_dataset val_set_size micro_batch_size
    gradient_accumulation_steps device_map max_memory attn_implementation chat_template special_tokens
    output_dir resume_from_checkpoint ddp_timeout tensor_parallel_size num_machines num_processes
    machine_rank main_process_ip main_process_port distributed_type deepspeed_config mixed_precision
    gpu_ids zero_optimization deepspeed_config_file path type stage train_batch_size bnb_config_kwargs
    gradient_checkpointing_kwargs qat save_steps eval_steps early_stopping_patience wandb_project
    """.split()  # noqa: SIM905 - a table
)
_KEYS = _KNOWN_KEYS | st.text(max_size=12)
_SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=30)
    | st.dates()
    | st.sampled_from(
        ["auto", "./data/a.jsonl", "/data/x", "deepspeed_configs/zero3.json", "DEEPSPEED", "FSDP", "lora"]
    )
)
_VALUES = st.recursive(
    _SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_KEYS, inner, max_size=4),
    max_leaves=20,
)
_MAPPINGS = st.dictionaries(_KEYS, _VALUES, max_size=12)


def _dumped(values: object) -> str:
    import yaml

    return yaml.safe_dump(values, allow_unicode=True)


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(_MAPPINGS, st.none() | _MAPPINGS, st.none() | _VALUES, st.sampled_from(["check", "submit"]))
def test_any_values_at_any_keys_get_a_verdict(
    config: dict, launch: dict | None, json: object, purpose: str
) -> None:
    import json as json_module

    brought = None
    if json is not None:
        brought = SubmittedFile(name="ds.json", text=json_module.dumps(json, default=str))
    submission = Submission(
        config=_dumped(config),
        accelerate=SubmittedFile(name="acc.yaml", text=_dumped(launch)) if launch is not None else None,
        deepspeed=brought,
        nodes=2,
        gpus_per_node=1,
    )
    with quick():
        verdict = check(submission, files=BundleFiles(submission), purpose=purpose)  # type: ignore[arg-type]
    rejected = any(found.severity == "error" for found in verdict.findings)
    assert verdict.verdict == ("reject" if rejected else "accept")
    assert verdict.model_dump_json()


EXTREMES: tuple[object, ...] = (
    float("inf"), float("-inf"), float("nan"), 10**30, -1, 0, 0.5, "", "²", "1e400", True, [], {}, [None], {"a": {}},
)  # fmt: skip


def _some_of(keys: Iterable[str], value: object) -> Iterator[dict[str, object]]:
    """Every key, a dozen at a time: one by one would take a minute."""
    drawn = sorted(keys)
    random.Random(str(value)).shuffle(drawn)
    for first_of in range(0, len(drawn), 12):
        yield dict.fromkeys(drawn[first_of : first_of + 12], value)


@pytest.mark.parametrize("value", EXTREMES, ids=str)
def test_an_extreme_value_at_any_key_that_there_is_gets_a_verdict(value: object) -> None:
    """`.inf` rows to evaluate on, a list for a path: what nobody means, and somebody writes."""
    config = yaml.load(GOOD) | {"datasets": [{"path": "rows.jsonl", "type": "alpaca"}]}
    launch = {"distributed_type": "DEEPSPEED", "num_machines": 2, "num_processes": 2}
    rows = (BundleFile(path="rows.jsonl", data=b"{}\n" * 3),)
    tried: list[tuple[dict[str, object], dict[str, object], dict[str, object]]] = [
        *(({**config, **some}, {}, {}) for some in _some_of(key_table().keys, value)),
        *((config, {**launch, **some}, {}) for some in _some_of(accelerate.KEYS, value)),
        *(
            (config, {**launch, "deepspeed_config": some}, {})
            for some in _some_of(accelerate.DEEPSPEED_KEYS, value)
        ),
        *((config, {}, {"zero_optimization": {}, **some}) for some in _some_of(deepspeed_table().top, value)),
    ]
    for settings_of, accelerate_of, deepspeed_of in tried:
        given = Submission(
            config=_dumped(settings_of | ({"deepspeed": deepspeed_of} if deepspeed_of else {})),
            accelerate=SubmittedFile(name="acc.yaml", text=_dumped(accelerate_of)) if accelerate_of else None,
            nodes=2,
            gpus_per_node=1,
            files=rows,
        )
        assert check(given, files=BundleFiles(given)).model_dump_json()


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.text(max_size=400) | st.text(alphabet="ab:-[]{}&*#'\"!|>%@`\t\n 01", max_size=400))
def test_any_text_gets_a_verdict(text: str) -> None:
    with quick():
        assert judge(text, text).model_dump_json()


_TAGGED = st.builds(
    "!!{} {}".format,
    st.sampled_from("bool int float timestamp binary set omap pairs null str".split()),  # noqa: SIM905 - a table
    st.sampled_from(
        [
            "maybe",
            "''",
            "2024-01-01",
            "tomorrow",
            "1:99",
            "aGk=",
            "{a, b}",
            "[{a: 1}]",
            "[]",
            "{=: x}",
            "~",
            "7",
            "yes",
        ]
    ),
)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(
        st.tuples(_KNOWN_KEYS, _TAGGED, st.sampled_from(["{}: {}", "{}: [{}]", "{}: {{a: {}}}"])), max_size=8
    ),
    _TAGGED,
)
def test_any_tag_at_any_key_gets_a_verdict(entries: list[tuple[str, str, str]], override: str) -> None:
    lines = "".join(form.format(key, value) + "\n" for key, value, form in entries)
    assert judge(GOOD + lines, lines).model_dump_json()
    submission = Submission(config=GOOD, overrides=(f"lora_r={override}", f"datasets={override}"))
    assert check(submission, files=BundleFiles(submission)).model_dump_json()


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.binary(max_size=400))
def test_any_bytes_get_a_verdict(data: bytes) -> None:
    text = decode("config.yml", data)
    assert isinstance(text, Finding) or judge(text).model_dump_json()


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(_MAPPINGS, _MAPPINGS)
def test_mending_never_makes_it_worse_and_never_raises(config: dict, launch: dict) -> None:
    submission = Submission(
        config=_dumped(config), accelerate=SubmittedFile(name="acc.yaml", text=_dumped(launch))
    )
    before = check(submission, files=BundleFiles(submission))
    after = fix(submission, files=BundleFiles(submission))
    assert before.verdict == "reject" or after.verdict.verdict == "accept"


def test_hostile_files_stay_within_the_memory_of_a_small_process() -> None:
    program = """
        from pathlib import Path
        from coordinator.checks import BundleFiles, check
        from coordinator.core.views import Submission
        megabytes = 4 << 20
        hostile = [
            "[" * megabytes,
            "{" * megabytes,
            "a: [" + "[], " * (megabytes // 4) + "]",
            "".join(f"key_{i}: {i}\\n" for i in range(250_000)),
            "a: '" + "x" * (megabytes - 10) + "'",
            "a: &a " + "x" * 100_000 + "\\n" + "".join(f"b{i}: *a\\n" for i in range(20_000)),
            "- " * (megabytes // 2),
            "a: 1" + ":1" * 1_000_000,
            "? " * 100_000,
            "a: |\\n" + "  line\\n" * 400_000,
            "<<: {<<: {<<: {a: 1}}}\\n" * 1000,
        ]
        for text in hostile:
            submission = Submission(config=text[:megabytes])
            check(submission, files=BundleFiles(submission))
        # Not getrusage: its figure includes what the process was before it became this program.
        peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in line)
        print(int(peak.split()[1]) * 1024)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CORE, (0, 0)),
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout) < MEMORY_BYTES
