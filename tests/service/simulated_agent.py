"""A replica without training: registers, reports, and answers each task at once with what a healthy one would say.

It speaks the real protocol to a real coordinator over HTTP; only the work behind it is missing. `files` are
what its result consists of; they are served to whoever downloads them. `clock_s`: how far its clock is ahead.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Iterator, Mapping

import httpx

from coordinator.core.protocol import (
    Address,
    Append,
    ArtifactFacts,
    AttemptPlan,
    CollectiveResult,
    CollectiveTask,
    CollectResult,
    CollectTask,
    Desired,
    Facts,
    LinkResult,
    ProgressRecord,
    Registered,
    Registration,
    Report,
    ReportReply,
    RunResult,
    RunTask,
    Stage,
    Task,
    TaskReport,
    TaskResult,
    TcpResult,
    TcpTask,
    Telemetry,
    UploadRequest,
)

STEPS = 5


class Agent:
    """One simulated replica. Drive it by hand (`register`, `report`, `desired`), or let it `live` in a thread."""

    def __init__(
        self, url: str, number: int, join_token: str, files: Mapping[str, bytes] | None = None
    ) -> None:
        self.replica_id = f"r-{number:010d}"
        self.number = number
        self.fingerprint = f"fingerprint-{number}"
        self.incarnation = 1
        self.files = dict(files or {"outputs/model.safetensors": b"weights" * 100})
        self.log = b""
        self.clock_s = 0.0
        self.hold: frozenset[Stage] = frozenset()
        self.uploads_begun: list[UploadRequest] = []
        self._join_token = join_token
        self.client = httpx.Client(base_url=f"{url}/api/v1", timeout=60, trust_env=False, verify=False)
        self.version: str | None = None
        self._wanted: Desired | None = None
        self.plan: AttemptPlan | None = None
        self.tasks: dict[str, TaskReport] = {}
        self.sizes: dict[str, int] = {}
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []

    # --- by hand

    def register(self) -> httpx.Response:
        registration = Registration(
            replica_id=self.replica_id,
            fingerprint=self.fingerprint,
            incarnation=self.incarnation,
            hostname=f"replica-{self.number}",
            addresses=(Address(address=f"10.0.0.{self.number % 250 + 1}", interface="eth0"),),
            echo_port=40000 + self.number % 20000,
        )
        response = self.client.post(
            "/replicas",
            content=registration.model_dump_json(),
            headers={"Authorization": f"Bearer {self._join_token}"},
        )
        if response.status_code == 201:
            registered = Registered.model_validate_json(response.content)
            self.replica_id = registered.replica_id
            self.client.headers["Authorization"] = f"Bearer {registered.token}"
        return response

    @property
    def token(self) -> str:
        return str(self.client.headers["Authorization"]).removeprefix("Bearer ")

    def report(
        self, *appends: Append, facts: Facts | None = None, attempt_id: str | None = None
    ) -> httpx.Response:
        plan = self.plan
        known = plan.attempt_id if plan else None
        report = Report(
            incarnation=self.incarnation,
            holding=(known,) if known and self.tasks else (),
            attempt_id=attempt_id or known,
            tasks=tuple(self.tasks.values()),
            appends=appends,
            facts=facts,
            telemetry=Telemetry(at=time.time() + self.clock_s),
        )
        return self.client.post(f"/replicas/{self.replica_id}/report", content=report.model_dump_json())

    def desired(self, wait_s: float = 0) -> Desired | None:
        headers = {"Prefer": f"wait={wait_s:g}"}
        if self.version is not None:
            headers["If-None-Match"] = f'"{self.version}"'
        response = self.client.get(f"/replicas/{self.replica_id}/desired", headers=headers)
        if response.status_code == 304:
            return None
        response.raise_for_status()
        desired = Desired.model_validate_json(response.content)
        assert response.headers["etag"] == f'"{desired.version}"'
        self.version = desired.version
        return desired

    def append(self, stream: str, data: bytes) -> int:
        """The next bytes of a stream of the present attempt; returns the acknowledged size."""
        assert self.plan is not None
        offset = self.sizes.get(stream, 0)
        response = self.report(
            Append(attempt_id=self.plan.attempt_id, stream=stream, offset=offset, data=data)
        )
        response.raise_for_status()
        (size,) = ReportReply.model_validate_json(response.content).acknowledged
        self.sizes[stream] = size.size_bytes
        return size.size_bytes

    def _mirror(self, stream: str, whole: bytes) -> None:
        """All of a stream, from what the coordinator has of it on."""
        while (size := self.sizes.get(stream, 0)) < len(whole):
            self.append(stream, whole[size:])

    # --- by itself

    def live(self) -> None:
        """Registers, then does what it should in a thread of its own until `end`."""
        while (answer := self.register()).status_code == 429 or answer.json().get("code") == "SYS119":
            time.sleep(1.0)  # in doubt whether it is a clone
        answer.raise_for_status()
        facts = Facts(packages={"torch": "2.13.0"}, python="3.11", torch_ready=True)
        self.report(facts=facts).raise_for_status()
        thread = threading.Thread(target=self._loop, daemon=True)
        self._threads.append(thread)
        thread.start()

    def vanish(self) -> None:
        """Killed: from now on nothing is heard of it."""
        self._stop.set()
        for thread in self._threads:
            thread.join(30)

    def come_back(self, *, as_container: bool = False) -> None:
        """After `vanish`, the next incarnation. `as_container`: with what was in memory and on its disk gone, too."""
        self.incarnation += 1
        if as_container:
            self.fingerprint += " again"
            self.plan, self.tasks, self.sizes = None, {}, {}
        self.version = self._wanted = None
        self._stop = threading.Event()
        self._threads = []
        self.live()

    def end(self) -> None:
        self.vanish()
        self.client.close()

    def _loop(self) -> None:
        while not self._stop.is_set():
            try:
                self._wanted = self.desired(wait_s=1) or self._wanted
                if self._wanted is not None:  # also when it is the same: something may be held back no more
                    self.converge(self._wanted)
                self.report()
            except httpx.TransportError:  # the coordinator is not there; nothing is forgotten for that
                self._stop.wait(0.1)
            except httpx.HTTPStatusError:
                if not self._stop.wait(0.2) and self.register().status_code != 201:
                    return

    def converge(self, desired: Desired) -> None:
        """Does what is asked for, all of it at once."""
        plan = desired.attempt
        if self.plan is None or plan is None or plan.attempt_id != self.plan.attempt_id:
            self.tasks, self.sizes = {}, {}
        self.plan = plan
        for request in desired.uploads:
            if request.upload_id not in {begun.upload_id for begun in self.uploads_begun}:
                self.uploads_begun.append(request)
                thread = threading.Thread(target=self.send, args=(request,), daemon=True)
                self._threads.append(thread)
                thread.start()
        if plan is not None and plan.task is not None and plan.task.stage not in self.hold:
            self._do(plan, plan.task)
            self.report().raise_for_status()

    def send(self, request: UploadRequest) -> httpx.Response:
        """Uploads the file that is asked for."""
        content = self.files[request.path][request.offset_bytes :]
        return self.client.put(
            f"/replicas/{self.replica_id}/uploads/{request.upload_id}", content=_pieces(content)
        )

    def _do(self, plan: AttemptPlan, task: Task) -> None:
        if task.task_id in self.tasks:
            return
        if isinstance(task, RunTask) and task.stage is Stage.TRAIN:
            lines = [record.model_dump_json(exclude_none=True).encode() for record in progress_of(plan)]
            self._mirror("progress.0", b"\n".join(lines) + b"\n")
            self._mirror("train.log", self.log or f"rank {plan.rank} trained\n".encode())
        self.tasks[task.task_id] = TaskReport(
            task_id=task.task_id, stage=task.stage, state="succeeded", result=self._result(task)
        )

    def _result(self, task: Task) -> TaskResult:
        if isinstance(task, TcpTask):
            links = tuple(
                LinkResult(replica_id=m.replica_id, address=m.address, ok=True, connect_s=0.001, rtt_s=0.001)
                for m in task.targets
            )
            port = task.port_candidates[0] if task.port_candidates else None
            return TcpResult(links=links, rendezvous_port=port)
        if isinstance(task, CollectiveTask):
            return CollectiveResult(
                ok=True,
                backend="gloo",
                init_s=0.1,
                first_all_reduce_s=0.1,
                values_ok=True,
                bytes_per_s={4: 1e6},
            )
        if isinstance(task, CollectTask):
            artifacts = tuple(
                ArtifactFacts(
                    path=path, size_bytes=len(data), sha256=hashlib.sha256(data).hexdigest(), kind="model"
                )
                for path, data in self.files.items()
            )
            return CollectResult(folder="outputs", artifacts=artifacts, tensors=3)
        output = {"digest": "same", "samples": 10} if task.stage is Stage.PREPARE else None
        return RunResult(exit_code=0, output=output)


def _pieces(content: bytes) -> Iterator[bytes]:
    for start in range(0, len(content), 1 << 16):
        yield content[start : start + (1 << 16)]


def progress_of(plan: AttemptPlan) -> Iterator[ProgressRecord]:
    at = 1_700_000_000.0
    yield ProgressRecord(
        type="start",
        at=at,
        rank=plan.rank,
        world_size=plan.world_size,
        total_steps=STEPS,
        batches=STEPS,
        trainable_parameters=11_272_192,
        all_parameters=1_247_086_592,
    )
    for step in range(1, STEPS + 1):
        yield ProgressRecord(
            type="log",
            at=at + step,
            rank=plan.rank,
            step=step,
            loss=2.0 / step,
            learning_rate=2e-4,
            step_s=0.5,
        )
    yield ProgressRecord(
        type="eval", at=at + 10, rank=plan.rank, step=STEPS, eval_loss=1.18, perplexity=3.255
    )
    yield ProgressRecord(type="end", at=at + 11, rank=plan.rank, step=STEPS, train_loss=1.207)
