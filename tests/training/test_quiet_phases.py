"""Healthy trainings are quiet now and then, for minutes: while they tokenise, load, compile, evaluate, save. No false alarm.

Twenty runs of the real stack on two hosts, each with one kind of quiet phase that lasts longer than a hang may, on the rank
that the others then wait for, or on both.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from fleet import Fleet
from twohosts import ALARMS, SHORT, ended, submit

from coordinator.core.track import THRESHOLDS

pytestmark = [pytest.mark.training, pytest.mark.hosts, pytest.mark.long, pytest.mark.timeout(1800)]

WORKING_S = THRESHOLDS.window_s + 15.0
SECONDS = {
    "tokenising": WORKING_S,
    "downloading": WORKING_S,
    "reading": WORKING_S,
    "compiling": WORKING_S,
    "evaluating": WORKING_S,
    "saving": WORKING_S,
    "still": THRESHOLDS.window_s - 10.0,
    "talking": THRESHOLDS.talk_s - 60.0,
}
EVALUATING = ("val_set_size=0.1", "eval_steps=4")
PLAIN = {
    "zero2": ("max_steps=40", "save_steps=10", "val_set_size=0.3", "eval_steps=10"),
    "ddp": ("deepspeed=", "max_steps=30", *EVALUATING),
    "seldom logged": ("max_steps=60", "logging_steps=50", "save_steps=50"),
    "packed": ("sample_packing=true", "pad_to_sequence_len=true", *EVALUATING),
}


def healthy(pair: Fleet, demo: Path, plan: dict[str, object], *overrides: str) -> None:
    job_id = submit(pair, demo, "quiet.QuietPlugin", plan, overrides=(*SHORT, *overrides))
    job = ended(pair, job_id)
    assert job.state == "succeeded", (job.verdict, job.findings, pair.said)
    assert not [one for one in job.findings if one.code in ALARMS]
    assert job.attempts == 1
    said = [rank for rank in (0, 1) if b"quiet: " in pair.stream(pair.replicas[rank], job_id, "train.log")]
    assert said == ([] if plan["what"] == "plain" else plan["ranks"]), "the phase was there"


@pytest.mark.parametrize("ranks", [[1], [0, 1]], ids=["one", "both"])
@pytest.mark.parametrize("what", SECONDS)
def test_a_quiet_phase_raises_no_alarm(pair: Fleet, demo: Path, what: str, ranks: list[int]) -> None:
    plan: dict[str, object] = {"what": what, "seconds": SECONDS[what], "ranks": ranks}
    healthy(pair, demo, plan, *(EVALUATING if what == "evaluating" else ()))


@pytest.mark.parametrize("kind", PLAIN)
def test_a_healthy_training_raises_no_alarm(pair: Fleet, demo: Path, kind: str) -> None:
    healthy(pair, demo, {"what": "plain", "seconds": 0, "ranks": []}, *PLAIN[kind])
