"""Tabs that separate or indent in a YAML file: where libyaml takes them for spaces, PyYAML's own scanner refuses them. Pure.

Called by `yaml.py`, which reads with libyaml what Axolotl and accelerate read with PyYAML's scanner.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from yaml import ScalarEvent

_BLOCKS = ("|", ">")


@dataclass(frozen=True, slots=True)
class Span:
    """Where a scalar stands in a text: what precedes `content` are its tag, anchor and indicators; in a plain scalar,
    which cannot hold a tab, it is the end."""

    start: int
    content: int
    end: int


def span_of(event: ScalarEvent, text: str) -> Span | None:
    """The place of a scalar that libyaml has read from `text`."""
    if event.start_mark is None or event.end_mark is None:
        return None
    start, end = event.start_mark.index, event.end_mark.index
    if not event.style:
        return Span(start, end, end)
    opened = text.find(event.style, start)
    if event.style not in _BLOCKS:
        return Span(start, opened, end)
    line = text.find("\n", opened)
    header = line if line != -1 else len(text)
    comment = text.find(" #", opened, header)
    return Span(start, comment if comment != -1 else header, end)


def separating_tab(text: str, scalars: Sequence[Span]) -> int | None:
    """Where the first tab stands that is neither in quotes, nor in a block of text, nor in a comment; None where none.

    Args:
        scalars: all of the text, in its order.
    """
    at = text.find("\t")
    after = 0  # the end of the last scalar before `at`
    following = iter(scalars)
    scalar = next(following, None)
    while at != -1:
        while scalar is not None and scalar.end <= at:
            after, scalar = scalar.end, next(following, None)
        if scalar is not None and scalar.start <= at:
            if at < scalar.content:
                return at
            at = text.find("\t", scalar.end)
            continue
        line = max(after, text.rfind("\n", 0, at) + 1)
        if "#" not in text[line:at]:
            return at
        end = text.find("\n", at)
        at = text.find("\t", end) if end != -1 else -1
    return None
