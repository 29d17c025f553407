"""Held reads and the end of the service: who asks again at once must not hold it up."""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path

import httpx
from serving import TOKEN, running
from simulated_agent import Agent

# Below the 3 s after which requests that still run are cut off, with an error in the log.
ENDING_S = 2.5


def test_agents_that_ask_again_at_once_do_not_hold_up_the_end(tmp_path: Path) -> None:
    with running(tmp_path) as coordinator:
        agents = [Agent(coordinator.url, number, TOKEN) for number in range(8)]
        asking = []
        for agent in agents:
            agent.register().raise_for_status()
            agent.desired()
            asking.append(threading.Thread(target=_ask_for_ever, args=(agent,), daemon=True))
            asking[-1].start()
        end = time.monotonic() + 30
        while coordinator.call(lambda: sum(len(p.waiters) for p in coordinator.services.roster.all())) < len(
            agents
        ):
            assert time.monotonic() < end, "all reads are held"
            time.sleep(0.02)
        began = time.monotonic()
        coordinator.stop()
        assert time.monotonic() - began < ENDING_S
        for thread in asking:
            thread.join(30)
            assert not thread.is_alive()


def _ask_for_ever(agent: Agent) -> None:
    with contextlib.suppress(httpx.HTTPError):
        while True:
            agent.desired(wait_s=20)
