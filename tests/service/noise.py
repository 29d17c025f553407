"""What a stand-in training says when it is to be compared to the last byte: known from a seed and a rank alone.

Lines, progress bars, colours, bytes that are no text, one line that is very long, secrets in whole and in halves. Read by
`stand_in.py`, which writes it, and by the tests, which know what must arrive.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator

# In the container's environment as HF_TOKEN, and of a well-known shape.
SECRETS = (b"chaos-secret-of-the-container", b"hf_" + b"Zx9" * 12)
LONG_LINE_BYTES = 1_500_000
_LETTERS = bytes(97 + value % 26 for value in range(256))


def pieces(seed: int, rank: int, count: int) -> Iterator[bytes]:
    """What is written to the log, one write each; a secret may end in the next one."""
    chance = random.Random(f"log {seed} {rank}")
    for number in range(count):
        yield _piece(chance, rank, number)


def written(seed: int, rank: int, count: int) -> bytes:
    """The whole log as the training writes it."""
    return b"".join(pieces(seed, rank, count))


def masked(log: bytes) -> bytes:
    """The log as the coordinator may know it."""
    for secret in SECRETS:
        log = log.replace(secret, b"*" * len(secret))
    return log


def records(seed: int, rank: int, world: int, count: int) -> list[dict[str, object]]:
    """The progress that goes with it, a record for each piece, and one at each end."""
    chance = random.Random(f"progress {seed} {rank}")
    plain = {"at": 1_700_000_000.0, "rank": rank}
    found: list[dict[str, object]] = [{**plain, "type": "start", "world_size": world, "total_steps": count}]
    for step in range(1, count + 1):
        found.append({**plain, "type": "log", "step": step, "loss": round(chance.random(), 6)})
    return [*found, {**plain, "type": "end", "step": count}]


def line(record: dict[str, object]) -> bytes:
    return json.dumps(record).encode() + b"\n"


def _piece(chance: random.Random, rank: int, number: int) -> bytes:
    first, second = SECRETS
    kind = chance.randrange(9)
    name = f"{rank}.{number} ".encode()
    match kind:
        case 0:
            return name + b"\r".join(b"%d%% done" % share for share in range(0, 100, 7)) + b"\n"
        case 1:
            return name + b"\x1b[31mred\x1b[0m \x1b[2K\x1b]8;;x\x07\n"
        case 2:
            return name + bytes(chance.randrange(128, 256) for _ in range(200)) + b"\0\n"
        case 3:
            return name + b"the token is " + first + b", that is all\n"
        case 4:
            return name + b"a key=" + second + b"\r\n" + first[:9]
        case 5:
            return name + first + first + b" half of one: " + first[: chance.randrange(1, len(first))]
        case 6 if number % 5 == 0:
            return name + chance.randbytes(LONG_LINE_BYTES).translate(_LETTERS)
        case _:
            lines = chance.randrange(1, 40)
            return b"".join(name + b"x" * chance.randrange(90) + b"\n" for _ in range(lines))
