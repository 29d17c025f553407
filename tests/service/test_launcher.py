"""Shim and launcher with real processes: what is started is kept track of, ended whole, and never started twice."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agent import launcher
from agent.launcher import TaskFolder, Times
from coordinator.core import process
from coordinator.core.paths import Layout
from coordinator.core.process import ProcessId
from coordinator.core.protocol import AttemptPlan, RunTask, Stage

PATIENCE_S = 30.0  # the machine may be busy with other tests
FAST = Times(grace_s=1.0, shim_s=3.0, orphan_grace_s=0.5)

# Makes a session of its own, as torchrun's workers do, ignores SIGTERM, and says its pid.
IGNORING = "import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
SAYING = "print({word!r}, os.getpid(), flush=True); time.sleep(600)"
STUBBORN_GRANDCHILD = f"""
import os, signal, subprocess, sys, time
worker = {IGNORING + SAYING.format(word="worker")!r}
child = subprocess.Popen([sys.executable, "-c", worker], start_new_session=True)
print("child", os.getpid(), flush=True)
time.sleep(600)
"""


def eventually(what: Callable[[], object], within_s: float = PATIENCE_S) -> None:
    until = time.monotonic() + within_s
    while not what():
        assert time.monotonic() < until, "it never came true"
        time.sleep(0.02)


@pytest.fixture
def layout(tmp_path: Path) -> Iterator[Layout]:
    layout = Layout(tmp_path.resolve() / "state")
    yield layout
    for attempt_id in launcher.marked(layout):
        assert launcher.end_attempt(attempt_id, layout, Times(0.2, 1.0, 0.2)) == ()
    launcher.reap()


class Job:
    """One attempt of a job on a replica, and processes in it."""

    def __init__(self, layout: Layout, job_id: str = "abcdef01", **plan: object) -> None:
        self.layout = layout
        self.plan = AttemptPlan.model_validate(
            {
                "job_id": job_id,
                "attempt_id": f"{job_id}-1",
                "number": 1,
                "rank": 0,
                "nodes": 1,
                "gpus_per_node": 0,
                "world_size": 1,
                **plan,
            }
        )
        self.attempt = layout.attempt(job_id, 1)
        layout.work(job_id).mkdir(parents=True)

    def begin(self, *argv: str, task_id: str = "train", grace_s: float = 1.0, **task: object) -> TaskFolder:
        folder = TaskFolder(self.attempt.task(task_id))
        run = RunTask.model_validate(
            {
                "task_id": task_id,
                "stage": Stage.TRAIN,
                "deadline_s": 600,
                "argv": argv,
                "stream": f"{task_id}.log",
                **task,
            }
        )
        launcher.write_spec(folder, run, self.plan, self.layout, sys.executable)
        spec = json.loads((folder.root / "spec.json").read_bytes())
        (folder.root / "spec.json").write_text(json.dumps({**spec, "grace_s": grace_s}))
        launcher.start(folder, self.plan, self.attempt)
        assert asyncio.run(launcher.started(folder))
        return folder

    def python(self, program: str, **task: object) -> TaskFolder:
        return self.begin("python", "-c", program, **task)  # type: ignore[arg-type]

    def log(self, task_id: str = "train") -> str:
        return (self.attempt.streams / f"{task_id}.log").read_text()


@pytest.fixture
def job(layout: Layout) -> Job:
    return Job(layout)


def ended(folder: TaskFolder) -> launcher.Exit:
    eventually(lambda: folder.stands() == "exited")
    found = folder.exit()
    assert found is not None
    return found


def pid_in(log: Callable[[], str], word: str) -> ProcessId:
    eventually(lambda: f"{word} " in log() and log().split(f"{word} ", 1)[1].split("\n")[0].isdigit())
    found = process.identify(int(log().split(f"{word} ", 1)[1].split("\n")[0]))
    assert found is not None
    return found


def test_the_exit_code_is_kept_and_the_output_is_in_the_stream(job: Job) -> None:
    folder = job.python("import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)")
    found = ended(folder)
    assert (found.exit_code, found.signal, found.requested) == (3, None, False)
    assert found.ended_at >= found.started_at
    assert sorted(job.log().split()) == ["err", "out"]


def test_a_command_that_dies_by_a_signal_is_told_from_one_that_exits(job: Job) -> None:
    found = ended(job.python("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"))
    assert (found.exit_code, found.signal) == (None, signal.SIGSEGV)


def test_a_command_that_cannot_be_started_says_so_in_its_log(job: Job) -> None:
    found = ended(job.begin("/nowhere/python9", "-V"))
    assert found.exit_code == 127
    assert "cannot start '/nowhere/python9'" in found.error
    assert "cannot start" in job.log()


def test_the_environment_is_the_containers_without_rankcall_and_with_the_plans(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANKCALL_TOKEN", "join-secret")
    monkeypatch.setenv("WORLD_SIZE", "16")
    monkeypatch.setenv("PET_NNODES", "4")
    monkeypatch.setenv("KEPT", "yes")
    job = Job(layout, environment={"A": "plan", "B": "plan"}, unset=["WORLD_SIZE", "PET_*"])
    folder = job.python("import json, os; print(json.dumps(dict(os.environ)))", environment={"B": "task"})
    assert ended(folder).exit_code == 0
    seen = json.loads(job.log())
    assert {name: seen.get(name) for name in ("KEPT", "A", "B")} == {"KEPT": "yes", "A": "plan", "B": "task"}
    assert not {"WORLD_SIZE", "PET_NNODES"} & set(seen)
    ours = {name: value for name, value in seen.items() if name.startswith("RANKCALL_")}
    assert ours == {"RANKCALL_ATTEMPT_DIR": str(job.attempt.root), "RANKCALL_ATTEMPT_ID": "abcdef01-1"}
    assert "join-secret" not in (folder.root / "spec.json").read_text()
    assert (folder.root / "spec.json").stat().st_mode & 0o077 == 0


def test_the_process_works_in_the_jobs_folder_in_a_session_of_its_own(job: Job) -> None:
    folder = job.python("import os; print(os.getcwd(), os.getsid(0) == os.getpid())")
    assert ended(folder).exit_code == 0
    assert job.log().split() == [str(job.layout.work("abcdef01")), "True"]


def test_ending_takes_grandchildren_that_made_sessions_of_their_own_and_ignore_sigterm(job: Job) -> None:
    folder = job.python(STUBBORN_GRANDCHILD)
    child, worker = pid_in(job.log, "child"), pid_in(job.log, "worker")
    assert launcher.end_attempt("abcdef01-1", job.layout, FAST) == ()
    assert not process.is_alive(child)
    assert not process.is_alive(worker)
    found = folder.exit()
    assert found is not None
    assert found.requested
    assert found.signal == signal.SIGTERM


def test_a_stopped_process_is_ended_too(job: Job) -> None:
    folder = job.python("import os, time; print('me', os.getpid(), flush=True); time.sleep(600)")
    stopped = pid_in(job.log, "me")
    os.kill(stopped.pid, signal.SIGSTOP)
    launcher.ask_to_end(folder)
    assert ended(folder).signal == signal.SIGTERM


def test_helpers_of_a_command_that_ended_are_ended_before_its_exit_is_told(job: Job) -> None:
    folder = job.python(STUBBORN_GRANDCHILD.replace("time.sleep(600)\n", "time.sleep(1)\nsys.exit(5)\n"))
    worker = pid_in(job.log, "worker")
    assert ended(folder).exit_code == 5
    assert not process.is_alive(worker)


def test_a_hang_up_ends_nothing_and_sigint_ends_the_grace(job: Job) -> None:
    folder = job.python(IGNORING + SAYING.format(word="me"), grace_s=300.0)
    pid_in(job.log, "me")
    record = folder.shim()
    assert record is not None
    process.send(record.shim, signal.SIGHUP)
    time.sleep(0.3)
    assert folder.stands() == "running"
    launcher.ask_to_end(folder)
    time.sleep(0.3)
    assert folder.stands() == "running"
    process.send(record.shim, signal.SIGINT)
    assert ended(folder).signal == signal.SIGKILL


def test_a_task_is_never_run_twice(job: Job) -> None:
    program = (
        "from pathlib import Path; p = Path('runs'); p.write_text(p.read_text() + 'x' if p.exists() else 'x')"
    )
    folder = job.python(program)
    ended(folder)
    launcher.start(folder, job.plan, job.attempt)
    again = subprocess.run(
        [sys.executable, "-m", "agent.shim", str(folder.root)], timeout=PATIENCE_S, check=False
    )
    assert again.returncode == 75
    assert (job.layout.work("abcdef01") / "runs").read_text() == "x"


def test_shims_that_are_started_at_the_same_moment_run_the_command_once(job: Job) -> None:
    folder = TaskFolder(job.attempt.task("train"))
    program = "import os; open('runs', 'a').write('x'); import time; time.sleep(1)"
    run = RunTask(
        task_id="train", stage=Stage.TRAIN, deadline_s=60, argv=("python", "-c", program), stream="train.log"
    )
    launcher.write_spec(folder, run, job.plan, job.layout, sys.executable)
    racers = [subprocess.Popen([sys.executable, "-m", "agent.shim", str(folder.root)]) for _ in range(4)]
    assert sorted(racer.wait(PATIENCE_S) for racer in racers) == [0, 75, 75, 75]
    assert (job.layout.work("abcdef01") / "runs").read_text() == "x"


def test_a_process_outlives_the_agent_that_started_it_and_the_next_one_adopts_it(
    job: Job, tmp_path: Path
) -> None:
    agent = f"""
import sys, os, signal
sys.path.insert(0, {str(Path(__file__).parent)!r})
from pathlib import Path
from test_launcher import Job, Layout
job = Job(Layout(Path({str(job.layout.root)!r})), "feedbeef")
job.python("import time; print('begun', flush=True); time.sleep(2); raise SystemExit(7)")
os.kill(os.getpid(), signal.SIGKILL)
"""
    died = subprocess.run([sys.executable, "-c", agent], timeout=PATIENCE_S, check=False)
    assert died.returncode == -signal.SIGKILL
    ((attempt_id, attempt),) = (
        found for found in launcher.attempt_folders(job.layout) if found[0] == "feedbeef-1"
    )
    (folder,) = launcher.task_folders(attempt)
    assert folder.stands() == "running"
    assert attempt_id in launcher.marked(job.layout)
    record = folder.shim()
    assert record is not None
    assert asyncio.run(launcher.ended(record.shim, PATIENCE_S))
    assert ended(folder).exit_code == 7
    assert folder.task() is not None
    assert launcher.marked(job.layout) == {}


def test_what_a_killed_shim_leaves_is_found_by_its_mark_and_ended(job: Job) -> None:
    folder = job.python(STUBBORN_GRANDCHILD)
    child, worker = pid_in(job.log, "child"), pid_in(job.log, "worker")
    record = folder.shim()
    assert record is not None
    process.send(record.shim, signal.SIGKILL)
    eventually(lambda: not process.is_alive(record.shim))
    assert folder.stands() == "lost"
    assert launcher.marked(job.layout) == {"abcdef01-1": {child, worker}}
    assert launcher.end_attempt("abcdef01-1", job.layout, FAST) == ()
    assert not process.is_alive(child)
    assert not process.is_alive(worker)


def test_a_pid_that_was_given_to_somebody_else_is_left_alone(job: Job) -> None:
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        real = process.identify(bystander.pid)
        assert real is not None
        folder = TaskFolder(job.attempt.task("train"))
        folder.root.mkdir(parents=True)
        stale = {"pid": real.pid, "start_ticks": real.start_ticks - 1}
        (folder.root / "shim.json").write_text(
            json.dumps({"shim": stale, "command": stale, "started_at": 1.0})
        )
        assert folder.stands() == "lost"
        launcher.ask_to_end(folder)
        assert launcher.end_attempt("abcdef01-1", job.layout, FAST) == ()
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_replicas_on_one_machine_do_not_end_each_others_part_of_an_attempt(tmp_path: Path) -> None:
    first, second = (Job(Layout(tmp_path.resolve() / name)) for name in ("one", "two"))
    program = "import os, time; print('me', os.getpid(), flush=True); time.sleep(600)"
    try:
        first.python(program)
        second.python(program)
        mine, others = pid_in(first.log, "me"), pid_in(second.log, "me")
        assert launcher.end_attempt("abcdef01-1", first.layout, FAST) == ()
        assert not process.is_alive(mine)
        assert process.is_alive(others)
    finally:
        for job in (first, second):
            launcher.end_attempt("abcdef01-1", job.layout, FAST)
        launcher.reap()


def test_the_exit_code_fits_on_a_full_disk(job: Job) -> None:
    """The space is reserved before the command starts; nothing but the command's own output may be lost."""
    folder = job.python("import time; time.sleep(600)")
    reserved = folder.root / "exit.reserved"
    eventually(reserved.exists)
    assert reserved.stat().st_size == 4096
    launcher.ask_to_end(folder)
    ended(folder)
    assert not reserved.exists()
