"""The shape of a known kind of error line. `trouble_machine.py` and `trouble_stack.py` hold the kinds."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Kind = Literal["configuration", "resources", "network", "replica", "unknown"]


@dataclass(frozen=True, slots=True)
class Trouble:
    """A kind of error line.

    Attributes:
        name: stable, for evidence and tests.
        code: of the finding that is made of it.
        kind: what it is a fault of; decides whether another attempt may help (`coordinator/retry.py`).
        echo: it says that something else went wrong earlier or elsewhere.
        mild: many trainings survive it; a cause only where the log holds no other.
    """

    name: str
    pattern: re.Pattern[str]
    cause: str
    hint: str
    code: str = "RUN001"
    kind: Kind = "unknown"
    echo: bool = False
    mild: bool = False


def kind_of_line(
    name: str,
    pattern: str,
    cause: str,
    hint: str,
    *,
    code: str = "RUN001",
    kind: Kind = "unknown",
    echo: bool = False,
    mild: bool = False,
) -> Trouble:
    return Trouble(name, re.compile(pattern), cause, hint, code, kind, echo, mild)
