"""Axolotl's own schema, asked in a process of its own (`axolotl_worker.py`), because importing it takes seconds and 600 MB.

Started when it is first asked, kept warm for the next question, given back when nobody has asked for a while; it ends
with whoever started it. It reaches no network and sees no secret of the environment. Called by `deep.py`; blocks.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from coordinator.core.tied import tied

_WORKER = Path(__file__).with_name("axolotl_worker.py")
# How soon whoever waits for an answer notices that the schema is being closed.
_SLICE_S = 0.2


@dataclass(frozen=True)
class Limits:
    """Judgements, in seconds.

    Attributes:
        import_s: a cold disk in a rented container reads torch's gigabytes in a minute or two.
        answer_s: an answer takes milliseconds; one that takes this long never comes.
        idle_s: what is not asked for so long gives its memory back.
        again_s: an interpreter that has no Axolotl, or a broken one, is not tried again for so long.
    """

    import_s: float = 180.0
    answer_s: float = 20.0
    idle_s: float = 300.0
    again_s: float = 600.0


class Complaint(BaseModel):
    """One thing that Axolotl refuses. `at`: pydantic's path, with the names of types among it."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    at: tuple[str, ...] = ()
    message: str


class Answer(BaseModel):
    """What Axolotl said of a config, and DeepSpeed of its settings.

    Attributes:
        axolotl: the version that was asked.
        unsure: why it could not say all.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    ok: bool
    axolotl: str = ""
    errors: tuple[Complaint, ...] = ()
    warnings: tuple[str, ...] = ()
    unsure: str | None = None
    deepspeed: tuple[Complaint, ...] = ()


class Unavailable(Exception):
    """Axolotl cannot be asked; the argument says why."""


class Absent(Unavailable):
    """There is no Axolotl to ask."""


class _Hello(BaseModel):
    """The first line of the process."""

    model_config = ConfigDict(extra="ignore")

    ready: bool
    absent: bool = False
    error: str = ""


class AxolotlSchema:
    """Axolotl's schema in a process of its own, started when it is first asked. Threads may share one; the one that
    asks first must outlive the others' questions, for the process is tied to it.

    Args:
        python: an interpreter that has Axolotl; RANKCALL_PYTHON or our own by default.
        niceness: how much the process stands back behind others.
    """

    def __init__(self, python: str | None = None, limits: Limits | None = None, *, niceness: int = 0) -> None:
        self._python = python or os.environ.get("RANKCALL_PYTHON") or sys.executable
        self._limits = limits or Limits()
        self._niceness = niceness
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._unread = b""
        self._timer: threading.Timer | None = None
        self._questions = 0
        self._refusal: Unavailable | None = None
        self._refused_until_s = 0.0

    def ask(self, question: Mapping[str, object]) -> Answer:
        """
        Raises:
            Unavailable: no Axolotl there (`Absent`), or no answer in time.
        """
        line = json.dumps(question).encode() + b"\n"
        with self._lock:
            self._questions += 1
            self._cancel_timer()
            try:
                process = self._started()
                assert process.stdin is not None
                process.stdin.write(line)
                process.stdin.flush()
                answer = Answer.model_validate_json(self._line(self._limits.answer_s))
            except (OSError, ValidationError) as error:
                self._end()
                raise Unavailable(f"Axolotl's process does not answer: {error}") from None
            except Unavailable:
                self._end()
                raise
            self._timer = threading.Timer(self._limits.idle_s, self._rest, (self._questions,))
            self._timer.daemon = True
            self._timer.start()
            return answer

    def close(self) -> None:
        """End the process and give its memory back, also under a question, which then fails; the next one starts it
        again."""
        self._closing.set()
        with self._lock:
            self._closing.clear()
            self._cancel_timer()
            self._end()

    def _rest(self, questions: int) -> None:
        """Nobody has asked for a while; unless somebody has, this very moment."""
        with self._lock:
            if questions == self._questions:
                self._end()

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        self._end()
        if self._refusal is not None and time.monotonic() < self._refused_until_s:
            raise self._refusal
        self._refusal = None
        try:
            return self._begun()
        except Unavailable as why:
            if not self._closing.is_set():
                self._refusal, self._refused_until_s = why, time.monotonic() + self._limits.again_s
            raise

    def _begun(self) -> subprocess.Popen[bytes]:
        program = shutil.which(self._python)
        if program is None:
            raise Absent(f"{self._python} is no program that can be started")
        self._folder = tempfile.TemporaryDirectory(prefix="rankcall-axolotl-")
        try:
            self._process = subprocess.Popen(
                tied([program, str(_WORKER), str(self._niceness)]),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd=self._folder.name,
                env=_environment(),
                start_new_session=True,
            )
            hello = _Hello.model_validate_json(self._line(self._limits.import_s))
        except OSError as error:
            raise Unavailable(f"{self._python} cannot be started: {error.strerror or error}") from None
        except ValidationError:
            raise Unavailable("Axolotl's process says something else than it should") from None
        if hello.absent:
            raise Absent(f"{self._python} has no Axolotl")
        if not hello.ready:
            raise Unavailable(f"{self._python} has no Axolotl that can be asked ({hello.error})")
        return self._process

    def _line(self, timeout_s: float) -> bytes:
        """The next line of the process."""
        assert self._process is not None and self._process.stdout is not None
        pipe = self._process.stdout.fileno()
        until = time.monotonic() + timeout_s
        while b"\n" not in self._unread:
            left_s = until - time.monotonic()
            readable, _, _ = select.select([pipe], [], [], min(max(0.0, left_s), _SLICE_S))
            if self._closing.is_set():
                raise Unavailable("Axolotl's process is being ended")
            if not readable:
                if left_s <= 0:
                    raise Unavailable(f"Axolotl did not answer within {timeout_s:.0f} s")
                continue
            some = os.read(pipe, 1 << 16)
            if not some:
                raise Unavailable(self._last_word())
            self._unread += some
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def _last_word(self) -> str:
        assert self._process is not None
        code = self._process.wait()
        return f"the process of {self._python} that should ask Axolotl has ended with exit code {code}"

    def _end(self) -> None:
        process, self._process, self._unread = self._process, None, b""
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _environment() -> dict[str, str]:
    """What an import needs, no secret, no GPU and no network."""
    kept = ("PATH", "HOME", "LANG", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "TMPDIR", "PYTHONPATH", "USER")
    return {name: os.environ[name] for name in kept if name in os.environ} | {
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "DS_ACCELERATOR": "cpu",
        "AXOLOTL_DO_NOT_TRACK": "1",
        "OMP_NUM_THREADS": "1",
    }
