"""The ground of every message: its base class, the stages of a job, and the one currency of judgement, `Finding`."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from pydantic import BaseModel, ConfigDict, JsonValue

PROTOCOL_VERSION = 1
# What every JSON reader and every database can hold exactly.
LARGEST_COUNT = 2**53 - 1
# The task id under which a replica reports that it has gathered evidence of a hang.
EVIDENCE = "evidence"
# More ranks than there are GPUs anywhere; a database's integer column holds it.
LARGEST_RANK = 2**24


class Message(BaseModel):
    """Base of all messages: immutable, lenient towards keys of a newer peer. Bytes are base64 in JSON.

    A class is built when it is first used: a command that needs five of them does not wait for fifty.
    """

    model_config = ConfigDict(
        frozen=True, extra="ignore", ser_json_bytes="base64", val_json_bytes="base64", defer_build=True
    )


class Stage(StrEnum):
    """The gates of an attempt, in their order; none is entered before the one before it has passed."""

    GATHER = "gather"
    MATCH = "match"
    TCP = "tcp"
    COLLECTIVE = "collective"
    PREPARE = "prepare"
    TRAIN = "train"
    COLLECT = "collect"
    COMPARE = "compare"


Severity = Literal["error", "warning", "note"]


class Finding(Message):
    """One judgement: what was seen, where, and what to do about it.

    Attributes:
        code: a stable name from `core/catalogue/` (`CFG…`, `ENV…`, `NET…`, `COL…`, `RUN…`, `SYS…`).
        replica: the replica it speaks of; None for the whole job or the submission.
        file, key, line: where in a submission (`key` dotted, `line` from 1).
        message: one sentence with the values seen; `hint`: one sentence saying what to do.
        evidence: what was observed, as data (log lines, exit codes, measured figures).
    """

    code: str
    severity: Severity
    message: str
    hint: str = ""
    stage: Stage | None = None
    replica: str | None = None
    file: str | None = None
    key: str | None = None
    line: int | None = None
    evidence: dict[str, JsonValue] = {}
