"""Masks secrets in bytes and text without changing their length, so that offsets in a stream hold.

A `Redactor` knows the secrets of this process's surroundings (values of variables whose name says so, and
what the caller adds) and the shapes of well-known tokens. The agent's stream reader, evidence and every
log line go through one. `unsafe_tail` says how many bytes at the end of a growing stream might yet become
a secret, so that a token which is written in two halves is not sent in clear.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping

_SECRET_NAME = re.compile(
    r"(?i)(token(?!iz|s)|secret|passw(or)?d|api_?key|access_?key|private_?key|credential)"
)
_OF_THE_VOCABULARY = re.compile(
    r"(?i)(special_tokens|added_tokens)|"
    r"(^|[._])(bos|eos|unk|sep|pad|cls|mask|eot|eom|eod|stop|image|audio|video|bo[a-z]|eo[a-z]|new|first|last)_token$"
)
_NOT_A_SECRET = frozenset({"true", "false", "none", "null", "yes", "no"})
_SHORTEST_SECRET = 8  # shorter values ("1234", "admin") occur in innocent text
_LONGEST_SHAPE = 4096  # bytes; a token of a well-known shape is shorter

# Hugging Face, Weights & Biases (new), OpenAI and Anthropic, GitHub, AWS, Slack, JSON Web Tokens.
_TOKEN_SHAPES = (
    rb"hf_[A-Za-z0-9]{20,}",
    rb"wandb_v1_[A-Za-z0-9_-]{20,}",
    rb"sk-[A-Za-z0-9_-]{20,}",
    rb"gh[pousr]_[A-Za-z0-9]{30,}",
    rb"github_pat_[A-Za-z0-9_]{30,}",
    rb"AKIA[A-Z0-9]{16}",
    rb"xox[abprs]-[A-Za-z0-9-]{10,}",
    rb"eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}",
)
_SHAPES = re.compile(
    rb"(?<![A-Za-z0-9_-])(?:" + rb"|".join(_TOKEN_SHAPES) + rb")"
    rb"|(?<=://)[^\s/:@'\"]{1,128}:[^\s/@'\"]{1,256}(?=@)"  # the user:password of a URL
    rb"|(?i:(?<=bearer ))[A-Za-z0-9._~+/-]{16,}=*"
)
# What a tail looks like that may yet grow into a match: the beginning of a token's mark, or a mark and what follows it.
_MARKS = (
    b"hf_",
    b"wandb_v1_",
    b"sk-",
    b"ghp_",
    b"gho_",
    b"ghu_",
    b"ghs_",
    b"ghr_",
    b"github_pat_",
    b"AKIA",
    b"xox",
    b"eyJ",
)
_BEGINNINGS = sorted({mark[:length] for mark in _MARKS for length in range(1, len(mark))})
_TOKEN_TAIL = re.compile(
    rb"(?:(?<![A-Za-z0-9_-])(?:" + b"|".join(_BEGINNINGS) + rb")"
    rb"|(?:" + b"|".join(_MARKS) + rb"|://|(?i:bearer ))[^\s'\"]*)\Z"
)
_MASK = b"*"


class Redactor:
    """Masks the given secrets and the well-known shapes.

    Args:
        secrets: literal values; short and commonplace ones are ignored.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        kept = {form.encode() for value in secrets if _worth_hiding(value) for form in _forms(value)}
        self._secrets = tuple(sorted(kept, key=lambda value: (-len(value), value)))
        self._literal = re.compile(b"|".join(re.escape(value) for value in self._secrets)) if kept else None
        self.reach_bytes = max((_LONGEST_SHAPE, *(len(value) for value in self._secrets)))

    @classmethod
    def of_environment(cls, environment: Mapping[str, str], more: Iterable[str] = ()) -> Redactor:
        """A redactor for the values of variables that are named like secrets, and `more`."""
        return cls((*secrets_of(environment), *more))

    def with_secrets(self, more: Iterable[str]) -> Redactor:
        return Redactor((*(value.decode() for value in self._secrets), *more))

    def mask(self, data: bytes) -> bytes:
        """`data` with every secret replaced by as many asterisks as it has bytes."""
        if self._literal is not None:
            data = self._literal.sub(_stars, data)
        return _SHAPES.sub(_stars, data)

    def mask_text(self, text: str) -> str:
        return self.mask(text.encode(errors="surrogateescape")).decode(errors="surrogateescape")

    def unsafe_tail(self, data: bytes) -> int:
        """How many bytes at the end of `data` could be the beginning of a secret, or the whole of one that grows."""
        tail = data[-self.reach_bytes :]
        shape = _TOKEN_TAIL.search(tail)
        longest = len(tail) - shape.start() if shape else 0
        for secret in self._secrets:
            for length in range(min(len(secret) - 1, len(tail)), longest, -1):
                if tail.endswith(secret[:length]):
                    longest = length
                    break
        return longest


def secrets_of(environment: Mapping[str, str]) -> tuple[str, ...]:
    """The values of variables whose name says that they are secret."""
    return tuple(
        value for name, value in environment.items() if _SECRET_NAME.search(name) and _worth_hiding(value)
    )


def secrets_within(value: object, path: tuple[str, ...] = ()) -> tuple[str, ...]:
    """The strings that a config holds under a name that says that they are secret, however deep.

    Tokens of the vocabulary (`special_tokens`, `pad_token`) are none.
    """
    if isinstance(value, Mapping):
        return tuple(
            found for key, inner in value.items() for found in secrets_within(inner, (*path, str(key)))
        )
    if isinstance(value, list | tuple):
        return tuple(found for inner in value for found in secrets_within(inner, path))
    if not isinstance(value, str) or not path or _OF_THE_VOCABULARY.search(".".join(path)):
        return ()
    return (value,) if _SECRET_NAME.search(path[-1]) and _worth_hiding(value) else ()


def _worth_hiding(value: str) -> bool:
    return len(value) >= _SHORTEST_SECRET and value.lower() not in _NOT_A_SECRET and not value.isdigit()


def _forms(value: str) -> tuple[str, ...]:
    """A value as it is, and as it stands in JSON."""
    quoted = json.dumps(value, ensure_ascii=False)[1:-1]
    return (value,) if quoted == value else (value, quoted)


def _stars(match: re.Match[bytes]) -> bytes:
    return _MASK * len(match.group())
