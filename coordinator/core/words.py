"""How numbers and foreign text are written for people: counts, sizes, durations. Used wherever something is said."""

from __future__ import annotations

import re
from datetime import datetime

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def counted(number: object, what: str) -> str:
    """1 file, 2 files; `what` is one of them."""
    if number == 1:
        return f"1 {what}"
    return f"{number} {what}es" if what.endswith(("s", "x")) else f"{number} {what}s"


def are(number: object, what: str) -> str:
    """1 file is, 2 files are."""
    return f"{counted(number, what)} {'is' if number == 1 else 'are'}"


def size(count: float) -> str:
    """Bytes for humans: 512 B, 4.0 KiB, 8.5 GiB."""
    if count < 1024:
        return f"{count:.0f} B"
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        count /= 1024
        if count < 1024 or unit == "TiB":
            return f"{count:.1f} {unit}"
    raise AssertionError("unreachable")


def duration(seconds: float | None) -> str:
    """42 s, 3:07, 2:03:04."""
    if seconds is None or seconds < 0:
        return "–"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def between(start: datetime | None, end: datetime | None) -> str:
    """What passed between two instants, 3.3 s or 1:05; nothing where one is not known."""
    if start is None or end is None:
        return ""
    seconds = (end - start).total_seconds()
    return f"{seconds:.1f} s" if seconds < 10 else duration(seconds)


def plain(text: object) -> str:
    """The text without control characters (line breaks and tabs stay) and direction marks."""
    return _CONTROL.sub("\ufffd", str(text))
