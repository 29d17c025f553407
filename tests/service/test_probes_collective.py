"""The collective probe with real torch: rounds of real processes on loopback, and their ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import textwrap
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agent.probes.warm import WarmProbe
from coordinator.core.process import descendants
from coordinator.core.protocol import CollectiveResult, CollectiveTask, Stage


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def task(rank: int, world: int, port: int, deadline_s: float = 30.0, **more: object) -> CollectiveTask:
    return CollectiveTask.model_validate(
        {
            "task_id": "collective",
            "stage": Stage.COLLECTIVE,
            "deadline_s": deadline_s,
            "rank": rank,
            "world_size": world,
            "master_address": "127.0.0.1",
            "master_port": port,
            "backend": "gloo",
            "interface": "lo",
            **more,
        }
    )


@contextlib.asynccontextmanager
async def warm(count: int) -> AsyncIterator[list[WarmProbe]]:
    probes = [WarmProbe() for _ in range(count)]
    try:
        await asyncio.gather(*(probe.start() for probe in probes))
        yield probes
    finally:
        await asyncio.gather(*(probe.close() for probe in probes))
        assert not _warm_processes(), "nothing is left running"


def _warm_processes() -> list[int]:
    return [
        found.id.pid
        for found in descendants(os.getpid())
        if b"agent.probes.forked" in Path(f"/proc/{found.id.pid}/cmdline").read_bytes()
    ]


async def together(probes: list[WarmProbe], port: int, **more: object) -> list[CollectiveResult]:
    processes = int(str(more.get("processes", 1)))
    tasks = [task(rank, len(probes) * processes, port, **more) for rank in range(len(probes))]
    return await asyncio.gather(*(probe.collective(one) for probe, one in zip(probes, tasks, strict=True)))


def listens(port: int) -> bool:
    with socket.socket() as knock:
        return knock.connect_ex(("127.0.0.1", port)) == 0


def test_rounds_pass_with_values_checked_and_give_the_port_back() -> None:
    async def run() -> None:
        async with warm(2) as probes:
            facts = await probes[0].torch_facts()
            assert facts["torch_ready"] is True
            assert facts["packages"]["torch"].startswith("2.")
            port = free_port()
            for processes in (1, 1, 2):
                for result in await together(probes, port, processes=processes):
                    assert result.ok, result
                    assert result.values_ok
                    assert result.phase == "done"
                    assert set(result.bytes_per_s) == {4, 1 << 20, 16 << 20}
                    assert (result.init_s or 0) > 0
                assert not listens(port)

    asyncio.run(run())


def test_a_replica_alone_passes_by_itself() -> None:
    async def run() -> None:
        async with warm(1) as probes:
            (result,) = await together(probes, free_port())
            assert result.ok, result

    asyncio.run(run())


def test_an_absent_replica_is_named_within_the_deadline() -> None:
    async def run() -> None:
        async with warm(1) as probes:
            await probes[0].torch_facts()
            began = time.monotonic()
            result = await probes[0].collective(task(0, 3, free_port(), deadline_s=3.0))
            assert time.monotonic() - began < 4.0
            assert (result.ok, result.phase, result.missing_ranks) == (False, "join", (1, 2))

    asyncio.run(run())


def test_a_master_that_is_not_there_is_told_with_its_port() -> None:
    async def run() -> None:
        async with warm(1) as probes:
            await probes[0].torch_facts()
            port = free_port()
            result = await probes[0].collective(task(1, 2, port, deadline_s=3.0))
            assert (result.ok, result.phase) == (False, "store")
            assert f"port {port}: connection refused" in result.error

    asyncio.run(run())


def test_a_taken_rendezvous_port_is_told_at_once() -> None:
    async def run() -> None:
        with socket.create_server(("0.0.0.0", 0)) as taken:
            async with warm(1) as probes:
                result = await probes[0].collective(task(0, 2, taken.getsockname()[1]))
                assert (result.ok, result.phase) == (False, "store")
                assert "EADDRINUSE" in result.error

    asyncio.run(run())


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
def test_a_child_that_is_stopped_or_killed_ends_the_round_and_is_told(number: signal.Signals) -> None:
    async def run() -> None:
        async with warm(1) as probes:
            await probes[0].torch_facts()
            running = asyncio.create_task(probes[0].collective(task(0, 2, free_port(), deadline_s=4.0)))
            child = await _child_of(probes[0])
            os.kill(child, number)
            result = await running
            assert not result.ok
            assert ("SIGKILL" in result.error) == (number is signal.SIGKILL)
            assert not Path(f"/proc/{child}").exists()
            assert (await together(probes, free_port()))[0].ok

    asyncio.run(run())


async def _child_of(probe: WarmProbe) -> int:
    while True:
        assert probe.pid is not None
        children = descendants(probe.pid)
        if children:
            return children[0].id.pid
        await asyncio.sleep(0.01)


def test_a_stopped_probe_process_is_given_up_after_the_deadline_and_replaced() -> None:
    async def run() -> None:
        async with warm(1) as probes:
            await probes[0].torch_facts()
            assert probes[0].pid is not None
            os.kill(probes[0].pid, signal.SIGSTOP)
            result = await probes[0].collective(task(0, 1, free_port(), deadline_s=2.0))
            assert not result.ok
            assert "does not answer" in result.error
            assert (await together(probes, free_port()))[0].ok

    asyncio.run(run())


def test_a_cancelled_round_leaves_no_child_and_the_process_goes_on() -> None:
    async def run() -> None:
        async with warm(1) as probes:
            await probes[0].torch_facts()
            pid = probes[0].pid
            running = asyncio.create_task(probes[0].collective(task(0, 2, free_port(), deadline_s=60.0)))
            child = await _child_of(probes[0])
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            until = time.monotonic() + 5
            while Path(f"/proc/{child}").exists():
                assert time.monotonic() < until
                await asyncio.sleep(0.02)
            assert (await together(probes, free_port()))[0].ok
            assert probes[0].pid == pid

    asyncio.run(run())


def test_without_torch_the_result_says_so() -> None:
    async def run(folder: Path) -> None:
        # An interpreter without site-packages: it has the agent, and no torch.
        bare = folder / "python"
        root = Path(__file__).parents[2]
        bare.write_text(f'#!/bin/sh\nPYTHONPATH={root} exec {sys.executable} -S "$@"\n')
        bare.chmod(0o755)
        probe = WarmProbe(python=str(bare))
        result = await probe.collective(task(0, 1, free_port()))
        assert (result.ok, result.phase) == (False, "import")
        assert "No module named 'torch'" in result.error
        facts = await probe.torch_facts()
        assert facts["torch_ready"] is False
        await probe.close()
        missing = WarmProbe(python=str(folder / "nowhere"))
        facts = await missing.torch_facts()
        assert "cannot be started" in facts["problems"][0]
        await missing.close()

    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(run(Path(folder)))


def test_who_is_still_in_an_earlier_round_does_not_meet_the_next_one_at_its_address() -> None:
    """A replica that was cut off has not been told yet; the one that was restarted waits for it, not for its past."""

    async def run() -> None:
        async with warm(2) as probes:
            await asyncio.gather(*(probe.torch_facts() for probe in probes))
            port = free_port()
            past = asyncio.create_task(probes[1].collective(task(1, 2, port, nonce="same")))
            await asyncio.sleep(0.3)
            again = asyncio.create_task(
                probes[0].collective(task(0, 2, port, nonce="same", task_id="collective-1"))
            )
            await asyncio.sleep(2.0)
            assert not again.done() and not past.done()
            past.cancel()
            late = await probes[1].collective(task(1, 2, port, nonce="same", task_id="collective-1"))
            assert late.ok, late
            assert (await again).ok

    asyncio.run(run())


def test_who_comes_to_an_earlier_round_waits_for_its_own_to_be_opened_there() -> None:
    async def run() -> None:
        async with warm(2) as probes:
            await asyncio.gather(*(probe.torch_facts() for probe in probes))
            port = free_port()
            past = asyncio.create_task(probes[0].collective(task(0, 2, port)))
            await asyncio.sleep(0.3)
            early = asyncio.create_task(probes[1].collective(task(1, 2, port, task_id="collective-1")))
            await asyncio.sleep(1.0)
            past.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await past  # it has told its process to end the round
            again = await probes[0].collective(task(0, 2, port, task_id="collective-1"))
            assert again.ok, again
            assert (await early).ok

    asyncio.run(run())


def test_when_the_agent_dies_its_probe_and_every_child_die_too(tmp_path: Path) -> None:
    script = tmp_path / "observer.py"
    script.write_text(
        textwrap.dedent(f"""
        import asyncio, os, sys
        from agent.probes.warm import WarmProbe
        from coordinator.core.protocol import CollectiveTask
        async def main():
            probe = WarmProbe()
            await probe.torch_facts()
            print(probe.pid, flush=True)
            await probe.collective(CollectiveTask(task_id="c", stage="collective", deadline_s=60, rank=0,
                world_size=2, master_address="127.0.0.1", master_port={free_port()}, backend="gloo",
                interface="lo"))
        asyncio.run(main())
        """)
    )

    async def run() -> None:
        agent = await asyncio.create_subprocess_exec(
            sys.executable, str(script), stdout=asyncio.subprocess.PIPE, cwd=Path(__file__).parents[2]
        )
        assert agent.stdout is not None
        warm_pid = int(await agent.stdout.readline())
        while not (children := descendants(warm_pid)):
            await asyncio.sleep(0.02)
        agent.kill()
        await agent.wait()
        pids = [warm_pid, *(child.id.pid for child in children)]
        until = time.monotonic() + 5
        while any(_runs(pid) for pid in pids):
            assert time.monotonic() < until
            await asyncio.sleep(0.05)

    asyncio.run(run())


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False
