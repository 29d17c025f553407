"""`rankcall logs`: the bytes of a stream, each once, over broken connections too."""

from __future__ import annotations

import json as jsonlib
import sys
import time
from collections.abc import Callable, Sequence

from coordinator.cli.console import say
from coordinator.cli.exits import Exit, Stop
from coordinator.cli.remote import Remote, failures_as_stops, stop_of
from coordinator.core import interrupt
from coordinator.core.http import ProblemAnswer, Unreachable
from coordinator.core.views import TERMINAL_STATES, JobView, StreamInfo

_PAUSE_S = 1.0


def print_log(
    remote: Remote,
    job_id: str,
    *,
    rank: int,
    stream: str,
    attempt: int | None,
    follow: bool,
    json: bool,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Writes the stream to stdout; with `follow` until its job has ended.

    Raises:
        Stop: 102 for no such job, rank or stream; 130 on Ctrl-C.
    """
    write = _JsonLines(rank, stream) if json else _Raw()
    what = f"{stream} of rank {rank} of job {job_id}"
    offset = 0
    waiting = False
    job = remote.job(job_id)
    if not follow or job.state in TERMINAL_STATES:
        _find(remote.streams(job_id).items, job, rank, stream, attempt)
    interrupt.raise_it()
    while True:
        last_look = job.state in TERMINAL_STATES
        try:
            with remote.log(
                job_id, rank=rank, stream=stream, attempt=attempt, offset=offset, follow=follow
            ) as (headers, blocks):
                attempt = attempt or _number(headers.get("x-rankcall-attempt"))
                for block in blocks:
                    write(block)
                    offset += len(block)
                size = _number(headers.get("x-rankcall-size"))
            if not follow and (size is None or offset >= size):
                break
        except Unreachable:
            if not follow:
                with failures_as_stops():
                    raise
        except ProblemAnswer as error:
            if not (follow and (error.status >= 500 or (error.status == 404 and not last_look))):
                raise stop_of(error, what) from None
            if not waiting and error.status == 404:
                say(f"Waiting for {what}.")
                waiting = True
        except KeyboardInterrupt:
            raise Stop(Exit.INTERRUPTED) from None
        if not follow:
            continue
        if last_look:
            break
        sleep(_PAUSE_S)
        job = _state(remote, job_id) or job
    write.end()


def _find(written: Sequence[StreamInfo], job: JobView, rank: int, stream: str, attempt: int | None) -> None:
    """
    Raises:
        Stop: 102 where that stream is not, naming those that are.
    """
    if not written:
        if job.attempt is None:
            verdict = f": {job.verdict}" if job.verdict else "."
            raise Stop(Exit.NOT_FOUND, f"Job {job.id} has started nothing yet{verdict}")
        return  # an attempt whose streams are still to come, or are kept no more: the API says which
    number = attempt or max(info.attempt for info in written)
    of_rank = sorted(info.stream for info in written if (info.attempt, info.rank) == (number, rank))
    if of_rank and stream not in of_rank:
        raise Stop(
            Exit.NOT_FOUND,
            f"Rank {rank} of job {job.id} has written no {stream} in attempt {number}.",
            hint=f"It has: {', '.join(of_rank)}.",
        )


def _state(remote: Remote, job_id: str) -> JobView | None:
    try:
        return remote.job(job_id)
    except Stop as stop:
        if stop.code == Exit.UNREACHABLE:
            return None
        raise


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None


class _Raw:
    def __call__(self, block: bytes) -> None:
        sys.stdout.buffer.write(block)
        sys.stdout.buffer.flush()

    def end(self) -> None:
        return


class _JsonLines:
    """A line of the stream as one JSON object: `{"rank", "stream", "text"}`."""

    def __init__(self, rank: int, stream: str) -> None:
        self._rank = rank
        self._stream = stream
        self._rest = b""

    def __call__(self, block: bytes) -> None:
        *lines, self._rest = (self._rest + block).split(b"\n")
        for line in lines:
            self._write(line)
        sys.stdout.flush()

    def _write(self, line: bytes) -> None:
        text = line.decode("utf-8", errors="replace")
        record = {"rank": self._rank, "stream": self._stream, "text": text}
        sys.stdout.write(jsonlib.dumps(record, ensure_ascii=False) + "\n")

    def end(self) -> None:
        if self._rest:
            self._write(self._rest)
            sys.stdout.flush()
