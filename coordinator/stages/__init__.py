"""Has this stage passed, failed, or is it still under way? One pure judge a stage. Called by `lifecycle.py`.

Each takes the job, the attempt and the replicas of its seats in rank order, and answers with a `Verdict`.
A stage never passes because something did not come: a silent replica is a failure at the deadline.
"""

from coordinator.stages.collective import first_round, judge_collective_stage, round_limit_s
from coordinator.stages.handshake import as_of_now, judge_match, judge_tcp_stage, tcp_task_id
from coordinator.stages.result import judge_collect, judge_compare
from coordinator.stages.verdict import (
    GONE_IN_HANDSHAKE_S,
    REPORT_SLACK_S,
    Verdict,
    deadline_s,
    overdue,
    task_id,
)
from coordinator.stages.work import judge_prepare, judge_train

__all__ = [
    "GONE_IN_HANDSHAKE_S",
    "REPORT_SLACK_S",
    "Verdict",
    "as_of_now",
    "deadline_s",
    "first_round",
    "judge_collect",
    "judge_collective_stage",
    "judge_compare",
    "judge_match",
    "judge_prepare",
    "judge_tcp_stage",
    "judge_train",
    "overdue",
    "round_limit_s",
    "task_id",
    "tcp_task_id",
]
