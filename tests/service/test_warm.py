"""The warm process is started and closed by different parts of the agent at once: nothing is lost, nothing is left."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from agent.probes.warm import WarmProbe


@pytest.fixture
def slow(tmp_path: Path) -> str:
    """An interpreter in which torch is never imported."""
    python = tmp_path / "python"
    python.write_text(
        f"#!/bin/sh\necho $$ >> {tmp_path}/pids\nexec {sys.executable} -c 'import sys; sys.stdin.read()'\n"
    )
    python.chmod(0o755)
    return str(python)


def started(folder: Path) -> list[int]:
    pids = folder / "pids"
    return [int(line) for line in pids.read_text().split()] if pids.exists() else []


def running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_facts_that_were_asked_for_when_it_was_closed_are_unknown_and_no_failure(
    slow: str, tmp_path: Path
) -> None:
    async def scene() -> None:
        warm = WarmProbe(slow)
        asking = asyncio.create_task(warm.torch_facts())
        while not started(tmp_path):
            await asyncio.sleep(0.01)
        await warm.close()
        assert await asking == {"torch_ready": False, "torch_asked": False}

    asyncio.run(asyncio.wait_for(scene(), 60))


def test_starting_and_closing_at_the_same_time_leaves_no_process(slow: str, tmp_path: Path) -> None:
    async def scene() -> None:
        warm = WarmProbe(slow)
        for _ in range(3):
            asked = await asyncio.gather(
                warm.start(), warm.close(), warm.torch_facts(), warm.close(), warm.start(), warm.close()
            )
            assert asked[2] == {"torch_ready": False, "torch_asked": False}
        await warm.close()
        assert warm.pid is None

    asyncio.run(asyncio.wait_for(scene(), 60))
    assert not [pid for pid in started(tmp_path) if running(pid)]
