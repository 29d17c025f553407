"""Streams: whatever order, repetition or failure appends arrive in, the store holds the bytes that were sent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection

from coordinator.store import Store, streams

SETTINGS = settings(
    deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60
)
_fresh = count()


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path_factory.mktemp('store')}/rankcall.db"
    else:
        url = request.getfixturevalue("postgresql").database()
    opened = Store.open(url)
    yield opened
    opened.close()


def fresh() -> str:
    """An attempt no other example has used."""
    return f"a-{next(_fresh)}"


def appending(attempt: str, offset: int, data: bytes) -> Callable[[Connection], streams.Appended]:
    return lambda c: streams.append(c, attempt, "r-1", "train.log", offset, data)


def whole(store: Store, attempt: str) -> bytes:
    return store.read_now(lambda c: streams.read(c, attempt, "r-1", "train.log", 0, 1 << 30))


@SETTINGS
@given(
    truth=st.binary(min_size=1, max_size=300),
    # Slices of the truth, in any order, any number of times, and groups of them that come to nothing.
    deliveries=st.lists(
        st.lists(st.tuples(st.integers(0, 300), st.integers(0, 80)), min_size=1, max_size=6).flatmap(
            lambda group: st.tuples(st.just(group), st.booleans())
        ),
        max_size=12,
    ),
)
def test_any_order_repetition_and_loss_of_appends_keeps_a_prefix_of_what_was_sent(
    store: Store, truth: bytes, deliveries: list[tuple[list[tuple[int, int]], bool]]
) -> None:
    attempt, held = fresh(), 0

    def deliver(group: list[tuple[int, int]], fails: bool) -> Callable[[Connection], list[streams.Appended]]:
        def operation(c: Connection) -> list[streams.Appended]:
            done = [appending(attempt, at, truth[at : at + length])(c) for at, length in group]
            if fails:
                raise ZeroDivisionError
            return done

        return operation

    for group, fails in deliveries:
        before = held
        try:
            answers = store.write_now(deliver(group, fails))
        except ZeroDivisionError:
            answers = []
        for (at, length), answer in zip(group, answers, strict=False):
            data = truth[at : at + length]
            assert answer.accepted == (at == held and len(data) > 0)
            held += len(data) if answer.accepted else 0
            assert answer.size_bytes == held
        assert held >= before
        assert whole(store, attempt) == truth[:held]

    # The sender asks for the size, and goes on from there.
    size = store.write_now(appending(attempt, 0, b"")).size_bytes
    assert size == held
    store.write_now(appending(attempt, size, truth[size:]))
    assert whole(store, attempt) == truth


@SETTINGS
@given(
    sizes=st.lists(
        st.sampled_from([1, 2, 7, 100, streams.CHUNK_BYTES - 1, streams.CHUNK_BYTES + 1]), max_size=5
    ),
    offset=st.integers(0, 1 << 20),
    limit=st.integers(0, 1 << 20),
)
def test_any_range_reads_as_the_same_range_of_what_was_appended(
    store: Store, sizes: list[int], offset: int, limit: int
) -> None:
    attempt, truth = fresh(), b""
    for number, size in enumerate(sizes):
        data = bytes((number * 31 + i) % 251 for i in range(min(size, 997))) * (size // 997 + 1)
        store.write_now(appending(attempt, len(truth), data[:size]))
        truth += data[:size]
    assert (
        store.read_now(lambda c: streams.read(c, attempt, "r-1", "train.log", offset, limit))
        == (truth[offset : offset + limit])
    )
    tail = store.read_now(lambda c: streams.tail(c, attempt, "r-1", "train.log", limit))
    assert tail.data == truth[max(0, len(truth) - limit) :]
    assert tail.offset + len(tail.data) == len(truth)


def test_an_append_beyond_or_before_the_end_is_refused_with_the_size_so_far(store: Store) -> None:
    attempt = fresh()
    assert store.write_now(appending(attempt, 5, b"early")) == (0, False)
    assert store.write_now(appending(attempt, 0, b"")) == (0, False)
    assert store.write_now(appending(attempt, 0, b"hello")) == (5, True)
    assert store.write_now(appending(attempt, 0, b"hello")) == (5, False)
    assert store.write_now(appending(attempt, 3, b"lo, world")) == (5, False)
    assert store.write_now(appending(attempt, 6, b"world")) == (5, False)
    assert store.write_now(appending(attempt, 5, b", world")) == (12, True)
    assert whole(store, attempt) == b"hello, world"


def test_an_append_at_the_same_offset_twice_in_one_group_is_taken_once(store: Store) -> None:
    attempt = fresh()

    def twice(c: Connection) -> list[streams.Appended]:
        return [appending(attempt, 0, b"first")(c), appending(attempt, 0, b"again")(c)]

    assert store.write_now(twice) == [(5, True), (5, False)]
    assert whole(store, attempt) == b"first"


def test_an_operation_reads_what_it_has_appended(store: Store) -> None:
    attempt = fresh()

    def look(c: Connection) -> tuple[bytes, dict[str, int], int]:
        appending(attempt, 0, b"abc")(c)
        appending(attempt, 3, b"def")(c)
        read = streams.read(c, attempt, "r-1", "train.log", 1, 4)
        return read, streams.sizes(c, attempt, "r-1"), streams.size(c, attempt, "r-1", "train.log")

    assert store.write_now(look) == (b"bcde", {"train.log": 6}, 6)


def test_streams_of_other_names_replicas_and_attempts_are_others(store: Store) -> None:
    attempt, other = fresh(), fresh()
    keys = [(a, r, n) for a in (attempt, other) for r in ("r-1", "r-2") for n in ("train.log", "progress.0")]

    def write(c: Connection) -> None:
        for number, key in enumerate(keys):
            streams.append(c, *key, 0, b"%d" % number * (number + 1))

    store.write_now(write)
    contents = store.read_now(lambda c: [streams.read(c, *key, 0, 99) for key in keys])
    assert contents == [b"%d" % number * (number + 1) for number in range(len(keys))]
    assert store.read_now(lambda c: streams.sizes(c, attempt, "r-2")) == {"train.log": 3, "progress.0": 4}
    found = store.read_now(lambda c: streams.of_attempt(c, attempt))
    assert [(s.replica_id, s.name, s.size_bytes) for s in found] == [
        ("r-1", "progress.0", 2), ("r-1", "train.log", 1), ("r-2", "progress.0", 4), ("r-2", "train.log", 3),
    ]  # fmt: skip
    assert store.read_now(lambda c: streams.read(c, "a-none", "r-1", "train.log", 0, 99)) == b""
    assert store.read_now(lambda c: streams.tail(c, "a-none", "r-1", "train.log", 99)) == (0, b"")
    assert store.read_now(lambda c: streams.size(c, "a-none", "r-1", "train.log")) == 0


def test_every_byte_value_and_megabytes_in_one_append_pass_through(store: Store, tmp_path: Path) -> None:
    attempt = fresh()
    data = bytes(range(256)) * (12 << 12)  # 12 MiB: more than is held back before the database gets it
    assert store.write_now(appending(attempt, 0, data)) == (len(data), True)
    assert store.write_now(appending(attempt, len(data), b"\r\n\x00")) == (len(data) + 3, True)
    assert whole(store, attempt) == data + b"\r\n\x00"
    assert (
        store.read_now(lambda c: streams.read(c, attempt, "r-1", "train.log", len(data) - 2, 4))
        == b"\xfe\xff\r\n"
    )
    assert store.read_now(streams.total_bytes) >= len(data) + 3
