"""What a training log says of its progress: steps, metrics, sizes, phases. Pure.

The plugin's records are better (`agent/plugin.py`: every rank, exact numbers); this reads what a log shows,
for trainings where the plugin could not be loaded. Feed bytes as they arrive, cut anywhere; events come out once
their line is whole. Why a training died: `last_words.py`.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from coordinator.core.protocol import ProgressRecord

# A line longer than this is no log line (a progress bar without ends, binary rubbish): it is cut.
MAX_LINE_CHARACTERS = 64 * 1024

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_BAR = re.compile(
    r"(?:^|(?<=\s))(?P<name>[^\d%|\r]{0,80}?:\s{1,4})?\d{1,3}%\|[^|]*\|\s*(?P<step>\d+)/(?P<total>\d+) "
    r"\[[^\]]*?,\s*(?P<rate>[\d.]+|\?)(?P<unit>it/s|s/it)"
)
_METRICS = re.compile(r"\{'[^{}]*'epoch': [^{}]*\}")
_PAIR = re.compile(r"'([^']+)': '?([^',}]+)'?")
_MAX_STEPS = re.compile(r"Maximum number of steps set at (\d+)")
_PARAMETERS = re.compile(r"trainable params: ([\d,]+) \|\| all params: ([\d,]+)")
_BATCHES = re.compile(r"gather_len_batches: \[([\d, ]+)\]")
_STARTED = re.compile(r"Starting trainer\.\.\.")
_SAVING = re.compile(r"Training completed! Saving trained model to (\S+?)\.?$")
_SAVED = re.compile(r"Model successfully saved to (\S+)")

_FIELDS: Final[Mapping[str, str]] = {
    "loss": "loss",
    "eval_loss": "eval_loss",
    "ppl": "perplexity",
    "eval_ppl": "perplexity",
    "learning_rate": "learning_rate",
    "grad_norm": "grad_norm",
    "train_loss": "train_loss",
    "train_runtime": "train_runtime_s",
}
_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Bar:
    """The training's progress bar moved. `step_s` is None before the first step is measured."""

    step: int
    total_steps: int
    step_s: float | None = None


@dataclass(frozen=True, slots=True)
class Metrics:
    """A line of numbers: of training, of an evaluation, or the last one (`train_loss`)."""

    step: int | None
    values: Mapping[str, float]
    total_steps: int | None = None


@dataclass(frozen=True, slots=True)
class Sizes:
    """Trainable and all parameters."""

    trainable: int
    all: int


@dataclass(frozen=True, slots=True)
class Batches:
    """Batches of each rank, as `gather_len_batches` shows them: they must be equal."""

    counts: tuple[int, ...]

    @property
    def equal(self) -> bool:
        return len(set(self.counts)) <= 1


@dataclass(frozen=True, slots=True)
class Phase:
    """started, saving, saved; `folder` where the log names it."""

    name: str
    folder: str | None = None


@dataclass(frozen=True, slots=True)
class TotalSteps:
    steps: int


Event = Bar | Metrics | Sizes | Batches | Phase | TotalSteps


@dataclass
class LogReader:
    """Reads one process's log as it grows."""

    _decoder: codecs.IncrementalDecoder = field(
        default_factory=lambda: codecs.getincrementaldecoder("utf-8")("replace")
    )
    _rest: str = ""
    _total: int | None = None
    _trainer_started: bool = False
    _bar_step: int = 0
    _logged_step: int = 0

    def feed(self, data: bytes) -> tuple[Event, ...]:
        """Events of all lines that are whole now. Carriage returns end lines too, as bars use them."""
        text = self._rest + self._decoder.decode(data)
        lines = re.split(r"\r\n|\n|\r", text)
        self._rest = lines.pop()[-MAX_LINE_CHARACTERS:]
        return tuple(event for line in lines for event in self._line(line))

    def end(self) -> tuple[Event, ...]:
        """Events of a last line that was never ended."""
        rest, self._rest = self._rest + self._decoder.decode(b"", final=True), ""
        return tuple(self._line(rest))

    def _line(self, line: str) -> list[Event]:
        line = _ANSI.sub("", line[:MAX_LINE_CHARACTERS])
        if not line.strip():
            return []
        return [*self._bars(line), *self._metrics(line), *self._facts(line)]

    def _bars(self, line: str) -> list[Event]:
        """Only the training's own bar: others have a name before them, or another total."""
        if not self._trainer_started:
            return []
        events: list[Event] = []
        for match in _BAR.finditer(line):
            step, total = int(match["step"]), int(match["total"])
            if match["name"] or (self._total is not None and total != self._total):
                continue
            self._total = total
            if step <= self._bar_step and events:
                continue
            self._bar_step = max(self._bar_step, step)
            events.append(Bar(step, total, _step_s(match["rate"], match["unit"])))
        return events[-1:]

    def _metrics(self, line: str) -> list[Event]:
        events: list[Event] = []
        for match in _METRICS.finditer(line):
            values = {
                key: number for key, text in _PAIR.findall(match[0]) if (number := _float(text)) is not None
            }
            if "loss" in values:
                # The bar is drawn ten times a second at most, so that with fast steps it lags behind.
                self._logged_step = max(self._logged_step + 1, self._bar_step)
                events.append(Metrics(self._logged_step, values, self._total))
            elif "eval_loss" in values or "train_runtime" in values:
                events.append(Metrics(max(self._logged_step, self._bar_step) or None, values))
        return events

    def _facts(self, line: str) -> list[Event]:
        if match := _MAX_STEPS.search(line):
            self._total = int(match[1])
            return [TotalSteps(self._total)]
        if match := _PARAMETERS.search(line):
            return [Sizes(int(match[1].replace(",", "")), int(match[2].replace(",", "")))]
        if match := _BATCHES.search(line):
            return [Batches(tuple(int(count) for count in match[1].split(",")))]
        if _STARTED.search(line):
            self._trainer_started = True
            return [Phase("started")]
        if match := _SAVING.search(line.rstrip()):
            return [Phase("saving", match[1])]
        if match := _SAVED.search(line):
            return [Phase("saved", match[1])]
        return []


def records(events: Sequence[Event], *, at: float, rank: int, local_rank: int = 0) -> list[ProgressRecord]:
    """The events as the plugin would have written them; what a log cannot tell is left out."""
    made: list[ProgressRecord] = []
    who = {"at": at, "rank": rank, "local_rank": local_rank}
    for event in events:
        match event:
            case Bar(step, total, step_s):
                # A sign of life, as the plugin gives it: the newest record of a log keeps its numbers.
                alive = {"phase": "train", "step": step, "total_steps": total, "step_s": step_s}
                made.append(ProgressRecord.model_validate({"type": "phase", **alive, **who}))
            case Metrics():
                made.append(_record(event, who))
            case TotalSteps(steps):
                made.append(ProgressRecord(type="start", total_steps=steps, **who))
            case Sizes(trainable, everything):
                made.append(
                    ProgressRecord(
                        type="start", trainable_parameters=trainable, all_parameters=everything, **who
                    )
                )
            case Batches(counts) if rank < len(counts):
                made.append(ProgressRecord(type="start", batches=counts[rank], world_size=len(counts), **who))
            case Phase(name):
                phase = {"started": "train", "saving": "save", "saved": "done"}[name]
                made.append(ProgressRecord(type="phase", phase=phase, **who))
            case _:
                pass
    return made


def _record(metrics: Metrics, who: Mapping[str, float]) -> ProgressRecord:
    values = metrics.values
    numbers = {name: values[key] for key, name in _FIELDS.items() if key in values}
    if "memory/device_reserved (GiB)" in values and values["memory/device_reserved (GiB)"] > 0:
        numbers["memory_bytes"] = round(values["memory/device_reserved (GiB)"] * _GIB)
    kind = "log" if "loss" in values else "eval" if "eval_loss" in values else "end"
    return ProgressRecord.model_validate(
        {
            "type": kind,
            "step": metrics.step,
            "total_steps": metrics.total_steps,
            "epoch": values.get("epoch"),
            **numbers,
            **who,
        }
    )


def _step_s(rate: str, unit: str) -> float | None:
    number = _float(rate)
    if not number:
        return None
    return number if unit == "s/it" else 1.0 / number


def _float(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if number - number == 0 else None  # neither infinite nor NaN
