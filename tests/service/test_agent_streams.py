"""The agent's mirror against the real store: nothing lost, nothing twice, secrets masked, memory bounded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent.streams import REPORT_BYTES, Mirror
from coordinator.core.paths import AttemptFolder
from coordinator.core.protocol import Append, StreamSize
from coordinator.core.redact import Redactor
from coordinator.store import Store, streams

SECRET = "s3cret-token-value"
_fresh = count()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    opened = Store.open(f"sqlite:///{tmp_path_factory.mktemp('store')}/rankcall.db")
    yield opened
    opened.close()


@dataclass
class Ends:
    """An agent's mirror and the store it mirrors to, with a link between them that may lose things."""

    store: Store
    root: Path
    redactor: Redactor = field(default_factory=Redactor)
    attempt_id: str = field(default_factory=lambda: f"job-{next(_fresh)}")
    now_s: float = 0.0
    sent: list[Append] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.folder = AttemptFolder(self.root / self.attempt_id)
        self.folder.streams.mkdir(parents=True)
        self.start_agent()

    def start_agent(self) -> None:
        self.mirror = Mirror(lambda: self.redactor)
        self.mirror.follow(self.attempt_id, self.folder)

    def write(self, name: str, data: bytes) -> None:
        with (self.folder.streams / name).open("ab") as file:
            file.write(data)

    def commit(self, appends: tuple[Append, ...]) -> list[StreamSize]:
        """What the intake does with a report's appends."""
        return self.store.write_now(
            lambda c: [
                StreamSize(
                    attempt_id=a.attempt_id,
                    stream=a.stream,
                    size_bytes=streams.append(c, a.attempt_id, "r-1", a.stream, a.offset, a.data).size_bytes,
                )
                for a in appends
            ]
        )

    def report(self, *, arrives: bool = True, answered: bool = True) -> int:
        """One report; returns how many bytes it carried."""
        appends = self.mirror.appends(self.now_s)
        self.sent += appends
        if arrives:
            sizes = self.commit(appends)
            if answered:
                self.mirror.acknowledge(appends, sizes, self.now_s)
        return sum(len(append.data) for append in appends)

    def drain(self) -> None:
        for _ in range(500):
            if not self.mirror.due(self.now_s):
                return
            self.report()
        raise AssertionError("the mirror never has enough")

    def stored(self, name: str) -> bytes:
        return self.store.read_now(lambda c: streams.read(c, self.attempt_id, "r-1", name, 0, 1 << 30))

    def written(self, name: str) -> bytes:
        return (self.folder.streams / name).read_bytes()


@pytest.fixture
def ends(store: Store, tmp_path: Path) -> Ends:
    return Ends(store, tmp_path)


LINES = st.binary(max_size=60).map(lambda raw: raw.replace(b"\n", b"") + b"\n")
STEPS = st.one_of(
    st.tuples(st.just("log"), st.binary(min_size=1, max_size=200)),
    st.tuples(st.just("progress"), LINES),
    st.tuples(st.just("torn"), st.binary(min_size=1, max_size=20)),
    st.tuples(
        st.sampled_from(["report", "lost", "unanswered", "repeated", "agent", "coordinator"]), st.just(b"")
    ),
)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)
@given(steps=st.lists(STEPS, max_size=40))
def test_whatever_is_lost_or_restarted_the_coordinator_ends_with_every_byte_once(
    store: Store, tmp_path: Path, steps: list[tuple[str, bytes]]
) -> None:
    ends = Ends(store, tmp_path)
    for what, data in steps:
        match what:
            case "log":
                ends.write("train.log", data)
            case "progress" | "torn":
                ends.write("progress.0", data)
            case "report":
                ends.report()
            case "lost":
                ends.report(arrives=False)
            case "unanswered":
                ends.report(answered=False)
            case "repeated":
                ends.commit(tuple(ends.sent[-3:]))
            case "agent":
                ends.start_agent()
            case "coordinator":
                ends.mirror.ask_again()
        if (ends.folder.streams / "train.log").exists():
            assert ends.written("train.log").startswith(ends.stored("train.log"))
    ends.mirror.close(ends.attempt_id)
    ends.drain()
    for name in ("train.log", "progress.0"):
        if (ends.folder.streams / name).exists():
            assert ends.stored(name) == ends.written(name)
    assert not ends.mirror.following
    assert ends.folder.mirrored.exists()


def test_a_progress_stream_is_cut_at_line_ends_while_its_process_lives(ends: Ends) -> None:
    ends.write("progress.0", b'{"step": 1}\n{"step"')
    ends.drain()
    assert ends.stored("progress.0") == b'{"step": 1}\n'
    ends.write("progress.0", b": 2}\n")
    ends.drain()
    assert ends.stored("progress.0") == b'{"step": 1}\n{"step": 2}\n'
    assert all(append.data.endswith(b"\n") for append in ends.sent if append.data)


def test_a_report_carries_a_bounded_share_of_each_stream_and_progress_first(ends: Ends) -> None:
    ends.write("train.log", b"x" * (5 << 20))
    ends.write("other.log", b"y" * (5 << 20))
    ends.write("progress.0", b"{}\n" * 100)
    ends.report()  # asks for the sizes of the long ones
    appends = ends.mirror.appends(0.0)
    assert sum(len(append.data) for append in appends) <= REPORT_BYTES
    assert {append.stream for append in appends} == {"train.log", "other.log"}
    ends.drain()
    assert ends.stored("train.log") == b"x" * (5 << 20)
    assert ends.stored("progress.0") == b"{}\n" * 100


def test_after_a_restart_the_size_is_asked_for_instead_of_sending_everything_again(ends: Ends) -> None:
    ends.write("train.log", b"z" * (3 << 20))
    ends.drain()
    ends.start_agent()
    ends.sent.clear()
    ends.drain()
    assert [len(append.data) for append in ends.sent] == [0]
    ends.write("train.log", b"more")
    ends.drain()
    assert ends.stored("train.log").endswith(b"zmore")


def test_streams_of_an_attempt_that_the_coordinator_does_not_know_are_offered_now_and_then(
    ends: Ends,
) -> None:
    ends.write("train.log", b"early")
    appends = ends.mirror.appends(0.0)
    ends.mirror.acknowledge(appends, (), 0.0)
    assert not ends.mirror.due(1.0)
    assert ends.mirror.due(60.0)
    ends.now_s = 60.0
    ends.drain()
    assert ends.stored("train.log") == b"early"


def test_secrets_are_masked_in_place_also_when_they_arrive_in_pieces(ends: Ends) -> None:
    ends.redactor = Redactor([SECRET])
    text = f"login with {SECRET} and hf_{'a' * 34} done\n".encode()
    for byte in text:
        ends.write("train.log", bytes([byte]))
        ends.report()
    ends.drain()
    stored = ends.stored("train.log")
    assert len(stored) == len(text)
    assert stored == text.replace(SECRET.encode(), b"*" * len(SECRET)).replace(b"hf_" + b"a" * 34, b"*" * 37)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(
    pieces=st.lists(
        st.sampled_from(
            [b"x", b"\n", b" ", SECRET.encode()[:7], SECRET.encode(), b"hf_" + b"B" * 40, b"hf_", b"abc"]
        ),
        max_size=25,
    ),
    cuts=st.lists(st.integers(1, 30), max_size=30),
)
def test_masking_does_not_depend_on_where_reports_are_cut(
    store: Store, tmp_path: Path, pieces: list[bytes], cuts: list[int]
) -> None:
    ends = Ends(store, tmp_path, Redactor([SECRET]))
    text = b"".join(pieces)
    left = text
    for cut in cuts:
        ends.write("train.log", left[:cut])
        left = left[cut:]
        ends.report()
    ends.write("train.log", left)
    ends.mirror.close(ends.attempt_id)
    ends.drain()
    assert ends.stored("train.log") == ends.redactor.mask(text)


def test_a_link_that_the_training_puts_among_the_streams_is_not_followed(ends: Ends, tmp_path: Path) -> None:
    (tmp_path / "private").write_bytes(b"private")
    (ends.folder.streams / "train.log").symlink_to(tmp_path / "private")
    ends.mirror.close(ends.attempt_id)
    ends.drain()
    assert ends.stored("train.log") == b""
