"""The agent's side of the warm process: one object that gives torch's facts and runs collective rounds.

The agent starts it when it starts itself, so that torch is imported while replicas are still gathering, and
closes it when training begins, because an imported torch holds hundreds of MB. Asked again after that, it
starts the process again by itself. Nothing here imports torch.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import time
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from coordinator.core.protocol import CollectiveResult, CollectiveTask

IMPORT_S = 300.0  # a cold disk in a rented container reads torch's 4 GB in minutes
FACTS_S = 120.0  # a CUDA context on each of eight GPUs, on a busy machine
SHARE = (
    0.9  # of a task's time that the process itself may use; without a word by the end it is taken for dead
)
_LINE_BYTES = 1 << 20
_STDERR_BYTES = 2000


class _Gone(Exception):
    """The warm process cannot answer; the argument says why."""


class _Closed(_Gone):
    """It was closed, on purpose."""

    def __init__(self) -> None:
        super().__init__("the probe process was closed")


class WarmProbe:
    """torch in a process of its own, imported once. `python` defaults to RANKCALL_PYTHON or our own."""

    def __init__(self, python: str | None = None, environment: Mapping[str, str] | None = None) -> None:
        self._python = python or os.environ.get("RANKCALL_PYTHON") or sys.executable
        self._environment = dict(os.environ if environment is None else environment)
        self._process: asyncio.subprocess.Process | None = None
        self._turn = asyncio.Lock()  # starting and closing take a while each, and never overlap
        self._readers: tuple[asyncio.Task[None], ...] = ()
        self._ready: asyncio.Future[None] | None = None
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._orders = 0
        self._complaint = b""

    @property
    def pid(self) -> int | None:
        """The process, while there is one."""
        running = self._process is not None and self._process.returncode is None
        return self._process.pid if running and self._process is not None else None

    async def start(self) -> None:
        """Start the process and return at once; torch is imported meanwhile."""
        async with self._turn:
            if self.pid is None:
                await self._close()
                await self._start()

    async def _start(self) -> None:
        self._ready = asyncio.get_running_loop().create_future()
        self._complaint = b""
        try:
            self._process = await asyncio.create_subprocess_exec(
                self._python,
                "-m",
                "agent.probes.forked",
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=self._environment,
                limit=_LINE_BYTES,
                start_new_session=True,
            )
        except OSError as problem:
            self._fail(_Gone(f"{self._python} cannot be started: {problem.strerror or problem}"))
            return
        self._readers = (asyncio.create_task(self._listen()), asyncio.create_task(self._overhear()))

    async def torch_facts(self) -> dict[str, Any]:
        """Keys of `protocol.Facts` that only torch knows. Without torch: `torch_ready` False and why.

        `torch_asked` is False when the process was closed meanwhile: nothing is known then.
        """
        try:
            async with asyncio.timeout(IMPORT_S + FACTS_S):
                await self._import()
                return await self._order({"deadline_s": FACTS_S})
        except _Closed:
            return {"torch_ready": False, "torch_asked": False}
        except _Gone as gone:
            return {"torch_ready": False, "torch_asked": True, "problems": [str(gone)]}
        except TimeoutError:
            await self.close()
            return {
                "torch_ready": False,
                "torch_asked": True,
                "problems": ["torch could not be imported and asked in time"],
            }

    async def collective(self, task: CollectiveTask) -> CollectiveResult:
        """Take part in a round; never raises, and answers within the task's deadline (and a moment).

        Cancelled, it ends the round's processes, and the imported torch stays.
        """
        began = time.monotonic()
        phase = "import"
        try:
            async with asyncio.timeout(task.deadline_s):
                await self._import()
            phase = "start"
            left_s = max(0.5, task.deadline_s - (time.monotonic() - began))
            async with asyncio.timeout(left_s):
                answer = await self._order(
                    {"deadline_s": left_s * SHARE, "task": task.model_dump(mode="json")}
                )
            return CollectiveResult.model_validate(answer)
        except _Gone as gone:
            error = str(gone)
        except TimeoutError:
            error = f"torch was not imported within {task.deadline_s:.0f} s"
            if phase == "start":
                error = "the probe process does not answer; it was stopped, or the machine is overloaded"
                await self.close()
        except ValidationError as problem:
            error = f"the probe process answered out of turn ({problem.error_count()} fields are wrong)"
        elapsed_s = time.monotonic() - began
        return CollectiveResult(ok=False, backend=task.backend, phase=phase, error=error, elapsed_s=elapsed_s)

    async def close(self) -> None:
        """End the process and all its children, and give their memory back."""
        async with self._turn:
            await self._close()

    async def _close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            if process.stdin is not None:
                process.stdin.close()  # it kills its children and leaves
            try:
                async with asyncio.timeout(1.0):
                    await process.wait()
            except TimeoutError:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()  # also ends one that is stopped; its children die with it
                await process.wait()
        for reader in self._readers:
            reader.cancel()
        await asyncio.gather(*self._readers, return_exceptions=True)
        self._readers = ()
        self._fail(_Closed())
        self._ready = None

    async def _import(self) -> None:
        """Wait until torch is imported, starting the process where there is none."""
        if self.pid is None:
            await self.start()
        if self._ready is None:
            raise _Closed
        await asyncio.shield(self._ready)

    async def _order(self, order: dict[str, Any]) -> dict[str, Any]:
        process = self._process
        if process is None or process.stdin is None:
            raise _Closed
        self._orders += 1
        number = self._orders
        self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            process.stdin.write(json.dumps({"id": number, **order}).encode() + b"\n")
            await process.stdin.drain()
            return await self._waiting[number]
        except (ConnectionError, RuntimeError) as problem:
            raise _Gone("the probe process has ended") from problem
        except asyncio.CancelledError:
            with contextlib.suppress(ConnectionError, RuntimeError):
                process.stdin.write(json.dumps({"cancel": number}).encode() + b"\n")
            raise
        finally:
            del self._waiting[number]

    async def _listen(self) -> None:
        assert self._process is not None and self._process.stdout is not None
        ready = self._ready
        assert ready is not None
        why = ""
        async for line in self._process.stdout:
            message = json.loads(line)
            if message.get("ready"):
                if not ready.done():
                    ready.set_result(None)
            elif "ready" in message:
                why = f"torch cannot be imported by {self._python}: {message['error']}"
            elif (waiting := self._waiting.get(message["id"])) is not None and not waiting.done():
                waiting.set_result(message["result"])
        await self._process.wait()
        self._fail(_Gone(why or self._epitaph(self._process.returncode)))

    async def _overhear(self) -> None:
        """Keep the end of what it prints: the only words of an interpreter that cannot even start."""
        assert self._process is not None and self._process.stderr is not None
        while data := await self._process.stderr.read(4096):
            self._complaint = (self._complaint + data)[-_STDERR_BYTES:]

    def _epitaph(self, code: int | None) -> str:
        lines = self._complaint.decode("utf-8", "replace").strip().splitlines()
        last = f": {lines[-1][:300]}" if lines else ""
        how = f"exit code {code}" if code is None or code >= 0 else f"signal {-code}"
        return f"the probe process ended ({how}){last}"

    def _fail(self, why: _Gone) -> None:
        """Whoever waits for the process waits no longer."""
        for waiting in (self._ready, *self._waiting.values()):
            if waiting is not None and not waiting.done():
                waiting.set_exception(why)
                waiting.exception()  # nobody may be waiting: that is not worth a warning
