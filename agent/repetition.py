"""How much a text repeats itself: the share of 4-grams of words that were there before. Pure.

Called by `agent/compare.py`. A base model that "says the same for ever" scores near 1, prose near 0.
"""

from __future__ import annotations

from collections.abc import Sequence

LENGTH = 4
# Writing without spaces (Chinese, Japanese, Thai) is compared by characters once it is longer than this.
UNSPACED_CHARACTERS = 40


def repetition(text: str) -> float:
    """0 (every 4-gram is new, or fewer than two of them) to 1."""
    words: Sequence[str] = text.split()
    if len(words) <= LENGTH and len(text.strip()) > UNSPACED_CHARACTERS:
        words = "".join(words)
    grams = [tuple(words[start : start + LENGTH]) for start in range(len(words) - LENGTH + 1)]
    if len(grams) < 2:
        return 0.0
    return round((len(grams) - len(set(grams))) / (len(grams) - 1), 4)
