"""Sentences that count, and lines that are broken for a terminal."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.cli.console import wrapped
from coordinator.core.words import are, counted


@pytest.mark.parametrize(
    ("number", "what", "said"),
    [
        (0, "file", "0 files"), (1, "file", "1 file"), (2, "file", "2 files"), (1, "process", "1 process"),
        (2, "process", "2 processes"), (None, "step", "None steps"),
    ],
)  # fmt: skip
def test_one_is_one_and_more_are_several(number: object, what: str, said: str) -> None:
    assert counted(number, what) == said


def test_the_verb_agrees() -> None:
    assert are(1, "GPU") == "1 GPU is"
    assert are(0, "GPU") == "0 GPUs are"


LINES = st.text(st.sampled_from("ab-/. é漢"), max_size=300).map(str.strip)


@given(LINES, st.integers(40, 200))
def test_nothing_is_lost_or_broken_when_a_line_is_wrapped(text: str, width: int) -> None:
    lines = wrapped(text, width)
    assert " ".join(lines).split() == text.split()
    longest = max((len(word) for word in text.split()), default=0)
    assert all(len(line) <= max(width, longest + 2) for line in lines)


def test_a_line_is_wrapped_for_a_terminal_only_and_a_quoted_one_never() -> None:
    text = "word " * 60
    assert wrapped(text, None) == [text]
    assert wrapped(f"  | {text}", 80) == [f"  | {text}"]
    first, second, *_ = wrapped(f"  → {text}", 80)
    assert first.startswith("  → word") and second.startswith("    word")
    assert wrapped("", 80) == [""]
