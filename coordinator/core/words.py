"""Numbers in sentences for a user. Used wherever a message counts something."""

from __future__ import annotations


def counted(number: object, what: str) -> str:
    """1 file, 2 files; `what` is one of them."""
    if number == 1:
        return f"1 {what}"
    return f"{number} {what}es" if what.endswith(("s", "x")) else f"{number} {what}s"


def are(number: object, what: str) -> str:
    """1 file is, 2 files are."""
    return f"{counted(number, what)} {'is' if number == 1 else 'are'}"
