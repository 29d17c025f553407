"""The deep check: Axolotl's own schema has the last word on its keys.

It runs in a process of its own (`axolotl_worker.py`), because importing it takes seconds and 600 MB: once for
a command (`check --deep`), kept warm for a coordinator's submissions, given back when nobody has asked for a
while. It is told the GPUs that the job is for, never asks those of the machine that checks, reaches no network
and sees no secret of the environment. Called by the command line and by `submissions.py`; blocks.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from coordinator.checks.check import examine, verdict
from coordinator.checks.deepspeed_schema import FORMER_COMPILE_KEYS
from coordinator.checks.files import Files
from coordinator.checks.subject import DeepSpeedUse, Purpose, Subject, items, mapping, shown
from coordinator.core import yaml
from coordinator.core.catalogue import finding
from coordinator.core.protocol import Facts, Finding
from coordinator.core.views import CheckVerdict, Submission

# Codes of rules that speak of the same keys as DeepSpeed's own refusals.
_ABOUT_DEEPSPEED = ("CFG203", "CFG204", "CFG219", "CFG220")
_WORKER = Path(__file__).with_name("axolotl_worker.py")


@dataclass(frozen=True)
class Limits:
    """Judgements, in seconds.

    Attributes:
        import_s: a cold disk in a rented container reads torch's gigabytes in a minute or two.
        answer_s: an answer takes milliseconds; one that takes this long never comes.
        idle_s: what is not asked for so long gives its memory back.
    """

    import_s: float = 180.0
    answer_s: float = 20.0
    idle_s: float = 600.0


# Compute capability by what a GPU's name contains, the more special first.
_CAPABILITIES: tuple[tuple[str, tuple[int, int]], ...] = (
    ("B300", (10, 3)),
    ("B200", (10, 0)),
    ("B100", (10, 0)),
    ("H200", (9, 0)),
    ("H100", (9, 0)),
    ("H800", (9, 0)),
    ("H20", (9, 0)),
    ("GH200", (9, 0)),
    ("BLACKWELL", (12, 0)),
    ("RTX 50", (12, 0)),
    ("RTX50", (12, 0)),
    ("5090", (12, 0)),
    ("5080", (12, 0)),
    ("RTX 6000 ADA", (8, 9)),
    ("RTX 40", (8, 9)),
    ("4090", (8, 9)),
    ("4080", (8, 9)),
    ("L40", (8, 9)),
    ("L4", (8, 9)),
    ("A100", (8, 0)),
    ("A800", (8, 0)),
    ("A30", (8, 0)),
    ("A10", (8, 6)),
    ("A16", (8, 6)),
    ("A40", (8, 6)),
    ("A4000", (8, 6)),
    ("A5000", (8, 6)),
    ("A6000", (8, 6)),
    ("RTX 30", (8, 6)),
    ("3090", (8, 6)),
    ("3080", (8, 6)),
    ("T4", (7, 5)),
    ("RTX 20", (7, 5)),
    ("2080", (7, 5)),
    ("V100", (7, 0)),
    ("P100", (6, 0)),
    ("1080", (6, 1)),
)
# Where nothing is known: a GPU that can do what configs commonly ask for.
_ORDINARY = (9, 0)


class Answer(BaseModel):
    """What Axolotl said of a config, and DeepSpeed of its settings. `unsure`: why it could not say all."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    ok: bool
    errors: tuple[Complaint, ...] = ()
    warnings: tuple[str, ...] = ()
    unsure: str | None = None
    deepspeed: tuple[Complaint, ...] = ()


class Complaint(BaseModel):
    """One thing that Axolotl refuses. `at`: pydantic's path, with the names of types among it."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    at: tuple[str, ...] = ()
    message: str


class Unavailable(Exception):
    """Axolotl cannot be asked; the argument says why."""


class AxolotlSchema:
    """Axolotl's schema in a process of its own, started when it is first asked. Threads may share one.

    Args:
        python: an interpreter that has Axolotl; RANKCALL_PYTHON or our own by default.
    """

    def __init__(self, python: str | None = None, limits: Limits | None = None) -> None:
        self._python = python or os.environ.get("RANKCALL_PYTHON") or sys.executable
        self._limits = limits or Limits()
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._unread = b""
        self._timer: threading.Timer | None = None

    def ask(self, question: Mapping[str, object]) -> Answer:
        """
        Raises:
            Unavailable: no Axolotl there, or no answer in time.
        """
        line = json.dumps(question).encode() + b"\n"
        with self._lock:
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
            self._timer = threading.Timer(self._limits.idle_s, self.close)
            self._timer.daemon = True
            self._timer.start()
            return answer

    def close(self) -> None:
        """End the process and give its memory back; the next question starts it again."""
        with self._lock:
            self._cancel_timer()
            self._end()

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        self._end()
        self._folder = tempfile.TemporaryDirectory(prefix="rankcall-axolotl-")
        try:
            self._process = subprocess.Popen(
                [self._python, str(_WORKER)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd=self._folder.name,
                env=_environment(),
                start_new_session=True,
            )
        except OSError as error:
            raise Unavailable(f"{self._python} cannot be started: {error.strerror or error}") from None
        try:
            hello = json.loads(self._line(self._limits.import_s))
        except ValueError:
            raise Unavailable("Axolotl's process says something else than it should") from None
        if not hello.get("ready"):
            raise Unavailable(f"{self._python} has no Axolotl that can be asked ({hello.get('error')})")
        return self._process

    def _line(self, timeout_s: float) -> bytes:
        """The next line of the process."""
        assert self._process is not None and self._process.stdout is not None
        pipe = self._process.stdout.fileno()
        until = time.monotonic() + timeout_s
        while b"\n" not in self._unread:
            readable, _, _ = select.select([pipe], [], [], max(0.0, until - time.monotonic()))
            if not readable:
                raise Unavailable(f"Axolotl did not answer within {timeout_s:.0f} s")
            some = os.read(pipe, 1 << 16)
            if not some:
                raise Unavailable("Axolotl's process has ended")
            self._unread += some
        line, _, self._unread = self._unread.partition(b"\n")
        return line

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


def deep_check(
    submission: Submission,
    schema: AxolotlSchema,
    *,
    files: Files,
    facts: tuple[Facts, ...] = (),
    data_roots: Sequence[str] = (),
    purpose: Purpose = "check",
    gpu: str | None = None,
) -> CheckVerdict:
    """As `check`, and Axolotl is asked too.

    Args:
        gpu: the name of the GPU the job is for, where no facts say it; else an ordinary one is assumed.
    """
    subject, found = examine(submission, files=files, facts=facts, data_roots=data_roots, purpose=purpose)
    if subject is not None:
        found.extend(ask_axolotl(subject, found, schema, gpu))
    return verdict(found, submission.allow)


def ask_axolotl(
    subject: Subject, found: Sequence[Finding], schema: AxolotlSchema, gpu: str | None = None
) -> tuple[Finding, ...]:
    """What Axolotl and DeepSpeed say beyond what has been found: CFG901, CFG902, CFG903, CFG904."""
    use = next((one for one in subject.deepspeed if one.by != "accelerate"), None)
    question = {
        # As text, because JSON makes text of every key and knows no dates: the answer is about what was written.
        "config": yaml.dump(subject.settings),
        "capabilities": capabilities(subject, gpu),
        "torch": next(
            (f.packages["torch"].split("+")[0] for f in subject.facts if "torch" in f.packages), None
        ),
        "deepspeed": _without_former(use.values) if use is not None else None,
    }
    try:
        answer = schema.ask(question)
    except Unavailable as why:
        return (finding("CFG902", str(why)),)
    said = [*_refusals(subject, found, answer), *_remarks(subject, answer)]
    if use is not None:
        said.extend(_deepspeed_refusals(subject, use, found, answer))
    if answer.unsure is not None:
        said.append(
            finding("CFG902", f"Axolotl could not say all: {shown(answer.unsure)}", severity="note", hint="")
        )
    return tuple(said)


def _refusals(subject: Subject, found: Sequence[Finding], answer: Answer) -> list[Finding]:
    """One finding for each key that Axolotl refuses and no rule has named."""
    by_place: dict[tuple[str, ...], list[str]] = {}
    for complaint in answer.errors:
        messages = by_place.setdefault(_place(subject, complaint.at), [])
        if complaint.message not in messages:
            messages.append(complaint.message)
    errors = [one for one in found if one.severity == "error"]
    refused = []
    for place, messages in by_place.items():
        message = " · ".join(messages)[:500]
        if _already_said(errors, place, message):
            continue
        refused.append(
            subject.found(
                "CFG901",
                f"Axolotl: {message}",
                *place,
                # A plugin of somebody else's, which was not asked, may bring what is missing.
                severity="warning" if answer.unsure else "error",
            )
        )
    return refused


def _deepspeed_refusals(
    subject: Subject, use: DeepSpeedUse, found: Sequence[Finding], answer: Answer
) -> list[Finding]:
    """One finding for each DeepSpeed setting that its own config class refuses and no rule has named."""
    named = {one.key for one in found if one.code in _ABOUT_DEEPSPEED and one.severity == "error" and one.key}
    refused = []
    for complaint in answer.deepspeed:
        key = ".".join(complaint.at)
        if any(one == key or one.endswith(f".{key}") for one in named) or (named and not complaint.at):
            continue
        refused.append(
            subject.found_in_deepspeed(use, "CFG904", f"DeepSpeed: {complaint.message[:500]}", *complaint.at)
        )
    return refused


def _without_former(values: Mapping[str, object] | None) -> Mapping[str, object] | None:
    """Without what rankcall leaves out when it writes the file."""
    if values is None or not any(key in mapping(values.get("compile")) for key in FORMER_COMPILE_KEYS):
        return values
    kept = {k: v for k, v in mapping(values["compile"]).items() if k not in FORMER_COMPILE_KEYS}
    return {**values, "compile": kept}


def _already_said(errors: Sequence[Finding], place: tuple[str, ...], message: str) -> bool:
    """Whether a rule has said it, with the line and what to write."""
    if place:
        return any(one.key and one.key.split(".")[0] == place[0] for one in errors)
    words = set(re.findall(r"\w+", message))
    return any(one.key and words & set(one.key.split(".")) for one in errors) or any(
        words & set(re.findall(r"`(\w+)", one.message)) for one in errors
    )


def _place(subject: Subject, at: tuple[str, ...]) -> tuple[str, ...]:
    """pydantic's path without the names of types: as far as the config has such keys."""
    whole = _followed(subject.settings, at)
    if whole or not at:
        return whole
    # Axolotl validates a dataset by itself too, and its complaint begins there.
    for section in ("datasets", "test_datasets"):
        for index, item in enumerate(items(subject.get(section))):
            below = _followed(item, at)
            if below:
                return (section, str(index), *below)
    return at[:1]


def _followed(value: object, at: tuple[str, ...]) -> tuple[str, ...]:
    place: list[str] = []
    for part in at:
        keys = {str(key): key for key in value} if isinstance(value, Mapping) else {}
        if isinstance(value, Mapping) and part in keys:
            value = value[keys[part]]
        elif isinstance(value, list) and part.isdigit() and int(part) < len(value):
            value = value[int(part)]
        else:
            continue
        place.append(part)
    return tuple(place)


def _remarks(subject: Subject, answer: Answer) -> list[Finding]:
    return [
        subject.found("CFG903", f"Axolotl: {said[:300]}", hint="") for said in dict.fromkeys(answer.warnings)
    ]


def capabilities(subject: Subject, gpu: str | None = None) -> dict[str, object]:
    """What Axolotl is told about the GPUs: the weakest of the replicas', else the one named, else an ordinary one."""
    known = [
        tuple(int(part) for part in one.compute_capability.split("."))
        for facts in subject.facts
        for one in facts.gpus
        if one.compute_capability and re.fullmatch(r"\d+\.\d+", one.compute_capability)
    ]
    capability = min(known) if known else capability_of(gpu or "") or _ORDINARY
    return {
        "bf16": capability >= (8, 0),
        "tf32": capability >= (8, 0),
        "fp8": capability >= (8, 9),
        "n_gpu": subject.world or 1,
        "n_node": subject.nodes or 1,
        "compute_capability": f"sm_{capability[0]}{capability[1]}",
    }


def capability_of(name: str) -> tuple[int, int] | None:
    """The compute capability of a GPU by its name (`NVIDIA GeForce RTX 5090`); None for an unknown one."""
    upper = name.upper().replace("-", " ")
    return next((capability for part, capability in _CAPABILITIES if part in upper), None)


Answer.model_rebuild()
