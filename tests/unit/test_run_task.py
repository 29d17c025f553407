"""When the agent ends a process of a task by itself: past its deadline, or silent for too long where silence counts."""

from __future__ import annotations

import pytest

from agent.run_task import overdue
from coordinator.core.protocol import RunTask, Stage


def task(idle_s: float | None) -> RunTask:
    return RunTask(
        task_id="prepare",
        stage=Stage.PREPARE,
        argv=("python",),
        stream="prepare.log",
        deadline_s=60,
        idle_s=idle_s,
    )


@pytest.mark.parametrize(
    ("idle_s", "left_s", "silent_s", "code"),
    [
        (10.0, 50.0, 3.0, None),
        (10.0, 50.0, 10.0, None),
        (10.0, 50.0, 10.1, "RUN021"),
        (10.0, 0.0, 0.0, "SYS004"),
        (10.0, -1.0, 20.0, "SYS004"),  # of two reasons the deadline is the one that nobody can argue with
        (None, 50.0, 1e6, None),
        (None, 0.0, 0.0, "SYS004"),
    ],
)
def test_a_process_is_ended_when_it_is_late_or_silent_for_longer_than_its_task_allows(
    idle_s: float | None, left_s: float, silent_s: float, code: str | None
) -> None:
    why = overdue(task(idle_s), left_s, silent_s)
    assert (why and why[0]) == code
    assert why is None or "prepare" in why[1]
