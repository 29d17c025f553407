"""`SYS…`: codes about the service itself: membership, deadlines, stores, access."""

from __future__ import annotations

from coordinator.core.catalogue.entry import Entry
from coordinator.core.protocol import Stage

ENTRIES: tuple[Entry, ...] = (
    Entry(
        code="SYS001",
        title="Not enough replicas",
        severity="error",
        what="Fewer replicas than the job wants were registered when its time to gather was over.",
        why="A job starts only when all of its replicas are there.",
        fix="Start the missing replicas (their start command is `rankcall up`), or submit with fewer `--nodes`.",
        stage=Stage.GATHER,
    ),
    Entry(
        code="SYS002",
        title="A cloned replica",
        severity="warning",
        what="Two containers registered under the same replica id while the first was alive.",
        why="The container-local state was copied, for instance into the image or onto a shared volume; "
        "messages of the two could not be told apart, so the second got an id of its own.",
        fix="Keep RANKCALL_STATE_DIR on container-local disk and out of the image.",
    ),
    Entry(
        code="SYS003",
        title="A replica is gone",
        severity="error",
        what="A replica of the attempt has not been heard of for too long.",
        why="Its container was stopped or restarted, or its network is down; the others cannot go on without it.",
        fix="Look at the container in the cloud's console; `rankcall retry ID` once it is back or replaced.",
    ),
    Entry(
        code="SYS004",
        title="A stage took too long",
        severity="error",
        what="A stage was not finished within its deadline.",
        why="Every stage has a deadline, so that a hang is never silent.",
        fix="See which replica was waited for and read its log; a deadline can be set per job.",
    ),
)
