"""YAML is read as Axolotl reads it, errors say where, and what is written reads back."""

from __future__ import annotations

import math

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.core.overrides import OverrideError, apply_overrides, scalar
from coordinator.core.yaml import YamlError, dump, load, read

TEXT = """\
base_model: some/model
datasets:
  - path: a.jsonl
    type: alpaca
  - path: b.jsonl
learning_rate: 1e-5
bf16: yes
"""

plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(" \n#:-'\"{}[],&*!|>%@`~?noyesé日1.e-", max_size=12),
    lambda children: (
        st.lists(children, max_size=4)
        | st.dictionaries(st.text("abc_nyo01", min_size=1, max_size=6), children, max_size=4)
    ),
    max_leaves=20,
)


def test_values_are_those_of_yaml_1_1() -> None:
    assert load(TEXT) == yaml.safe_load(TEXT)
    assert load(TEXT)["learning_rate"] == "1e-5"
    assert load(TEXT)["bf16"] is True


def test_every_key_knows_its_line() -> None:
    document = read(TEXT)
    assert document.line("learning_rate") == 6
    assert document.line("datasets", "1", "path") == 5
    assert document.line("datasets", "1", "type") == 5, "what is not there is looked for at its parent"
    assert document.line("nothing") is None


def test_a_key_written_twice_is_told() -> None:
    document = read("a: 1\nb:\n  c: 1\n  c: 2\na: 3\n")
    assert [(duplicate.path, duplicate.first_line, duplicate.line) for duplicate in document.duplicates] == [
        (("b", "c"), 3, 4),
        (("a",), 1, 5),
    ]


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("", 0, "empty"),
        ("- a\n- b\n", 1, "list"),
        ("just words\n", 1, "plain text"),
        ("a: 1\n\tb: 2\n", 2, "tab"),
        ("a: 1\nb c\nd: 2\n", 3, "':'"),
        ("a: 1\n---\nb: 2\n", 3, "second document"),
        ("on: push\n", 1, "quotes"),
        ('a: 1\nb: "\x07"\n', 2, "unprintable"),
        ("a: !!python/object/apply:os.system ['true']\n", 1, "constructor"),
        ("a: 2024-02-31\n", 1, "cannot be read"),
        ("a: 1\nstrict: !!bool maybe\n", 2, "'maybe' cannot be read as bool"),
        ("a: 1\nwhen: !!timestamp tomorrow\n", 2, "'tomorrow' cannot be read as timestamp"),
        ("a: 1\nrate: !!float ''\n", 2, "cannot be read as float"),
        ("a: 1\nsteps: !!int ''\n", 2, "cannot be read as int"),
        ("a: !!timestamp {=: x}\n", 1, "cannot be read as timestamp"),
        ("!!set {a, b}\n", 1, "tag"),
        ("!!str 2024-02-31: x\n1: y\n", 2, "quotes"),
    ],
)
def test_an_error_says_where_and_what(text: str, line: int, words: str) -> None:
    with pytest.raises(YamlError) as caught:
        load(text, "mine.yml")
    assert caught.value.line == line
    assert words in caught.value.problem
    assert str(caught.value).startswith("mine.yml")


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "text",
    [
        "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 60)),
        "a: " + "[" * 5000,
        "a: &a {b: *a}\n",
        "a: " + "{b: " * 200 + "1" + "}" * 200,
        "a: !!int " + "9" * 5000,
        "a: !!int 0x" + "f" * 5000,
        "a: !!int '1" + ":59" * 200_000 + "'",
        "a: !!float '1" + ":59" * 200_000 + "'",
    ],
)
def test_a_file_made_to_exhaust_is_refused_quickly(text: str) -> None:
    with pytest.raises(YamlError):
        load(text)


@given(st.dictionaries(st.text("abcdefg_", min_size=1), plain, max_size=6))
def test_what_is_written_reads_back_equal(values: dict[str, object]) -> None:
    assert load(dump(values) if values else "{}\n") == values


@given(st.text(max_size=200))
def test_any_text_is_a_mapping_or_an_error_with_a_place(text: str) -> None:
    try:
        assert isinstance(load(text), dict)
    except YamlError as error:
        assert error.line >= 0


_TAGS = st.sampled_from(
    [
        "bool",
        "int",
        "float",
        "timestamp",
        "binary",
        "set",
        "omap",
        "pairs",
        "null",
        "str",
        "seq",
        "map",
        "value",
        "merge",
    ]
)
_ODD = st.sampled_from(
    ["", "maybe", "tomorrow", "''", "0x", "0b", "1:99", "-", "+", ".", "1e5", "2024-02-31", "2024-01-01T99:00:00Z", "é",
     "²", "aGk=", "[a]", "[[a, b]]", "[{a: 1}]", "{a: 1}", "{=: x}", "{? [a]}", "{1: a}", "{a, b}", "~", "yes"]
) | st.text(max_size=8)  # fmt: skip


@settings(max_examples=500)
@given(
    _TAGS, _ODD, st.sampled_from(["a: {}\n", "a: [{}, 1]\n", "{}: a\n", "{}\n", "a: {{b: {}}}\n", "? {}\n"])
)
def test_any_tag_on_any_value_is_a_mapping_or_an_error_with_a_place(tag: str, value: str, form: str) -> None:
    try:
        assert isinstance(load(form.format(f"!!{tag} {value}")), dict)
    except YamlError as error:
        assert error.line >= 0


def test_overrides_are_laid_over_in_order_and_change_only_the_copy() -> None:
    config = load(TEXT)
    changed = apply_overrides(
        config,
        [
            "num_epochs=2",
            "num_epochs=3",
            "--micro_batch_size=4",
            "learning_rate=1e-4",
            "datasets.0.path=c.jsonl",
            "datasets.2.path=d.jsonl",
            "trl.beta=0.1",
            "adapter=",
            "plugins=[x, y]",
        ],
    )
    assert changed["num_epochs"] == 3
    assert changed["micro_batch_size"] == 4
    assert math.isclose(changed["learning_rate"], 1e-4)  # type: ignore[arg-type]
    assert changed["datasets"] == [
        {"path": "c.jsonl", "type": "alpaca"},
        {"path": "b.jsonl"},
        {"path": "d.jsonl"},
    ]
    assert changed["trl"] == {"beta": 0.1}
    assert changed["adapter"] is None
    assert changed["plugins"] == ["x", "y"]
    assert config == load(TEXT)


@pytest.mark.parametrize(
    "override",
    [
        "novalue",
        "=1",
        "a..b=1",
        "base_model.x=1",
        "datasets.9.path=x",
        "x=[1",
        "datasets.²=x",
        "datasets.٣=x",
        "x=!!bool maybe",
        "x=!!int ''",
        "x=1\ny: 2",
        "\udcff=1",
        "x=\udcff",
    ],
)
def test_an_override_that_cannot_be_applied_names_itself(override: str) -> None:
    with pytest.raises(OverrideError) as caught:
        apply_overrides(load(TEXT), [override])
    assert repr(override) in str(caught.value)


@pytest.mark.parametrize(
    "override", [f"datasets.{'9' * 5000}=x", f"{'a.' * 5000}a=1", f"x={'9' * 5000}e5", f"x={'9' * 5000}"]
)
def test_an_endless_override_is_refused_in_one_short_sentence(override: str) -> None:
    with pytest.raises(OverrideError) as caught:
        apply_overrides(load(TEXT), [override])
    assert len(str(caught.value)) < 600


_KEYS = st.text("abd.0129²٣-\udcff\n é", max_size=10) | st.sampled_from(
    ["datasets.0", "datasets.2.path", "base_model"]
)


@settings(max_examples=500)
@given(
    _KEYS,
    _ODD | st.builds("!!{} {}".format, _TAGS, _ODD) | st.text(max_size=20),
    st.sampled_from(["=", ".x=", ""]),
)
def test_any_override_is_laid_over_or_refused(key: str, value: str, between: str) -> None:
    try:
        assert isinstance(apply_overrides(load(TEXT), [f"{key}{between}{value}"]), dict)
    except OverrideError as error:
        assert error.problem


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-5", 1e-5),
        ("true", True),
        ("", None),
        ("a b", "a b"),
        ("[1, 2]", [1, 2]),
        ("'1'", "1"),
        ("no", False),
    ],
)
def test_a_value_on_the_command_line_is_yaml(text: str, value: object) -> None:
    assert scalar(text) == value
