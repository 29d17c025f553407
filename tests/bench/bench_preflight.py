"""A healthy preflight of real replicas on hosts of their own: facts, tcp and collective, from request to verdict.

    .venv/bin/python tests/bench/bench_preflight.py [--replicas 2] [--rounds 5]      (root: it makes network namespaces)

torch is imported before (`torch ready` of every replica), as it is where containers have been up for a minute.
The job's own time is what `POST /preflights` to its last event took on the coordinator's clock.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TESTS / "hosts"), str(TESTS / "service")]

from fleet import fleet  # noqa: E402 - they lie beside the tests
from namespaces import making  # noqa: E402

from coordinator.core.views import PreflightView  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        making() as make,
        fleet(make(options.replicas), Path(folder)) as replicas,
    ):
        replicas.up()
        replicas.ready(*(replica.host.name for replica in replicas.replicas))
        took, commands = [], []
        for _ in range(options.rounds):
            began = time.perf_counter()
            ran = replicas.master.run("preflight", "--json")
            commands.append(time.perf_counter() - began)
            assert ran.code == 0, ran.out + ran.err
            view = PreflightView.model_validate_json(ran.out)
            assert view.ended_at is not None
            took.append((view.ended_at - view.created_at).total_seconds())
            stages = {
                str(stage.stage): round((stage.ended_at - stage.started_at).total_seconds(), 2)
                for stage in view.attempt.stages
                if stage.started_at and stage.ended_at
            }
            print(f"{took[-1]:.2f} s, the command {commands[-1]:.2f} s; {stages}")
        print(
            f"median of {options.rounds}: {statistics.median(took):.2f} s, {statistics.median(commands):.2f} s"
        )


if __name__ == "__main__":
    main()
