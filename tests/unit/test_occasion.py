"""When an agent's report is due, and when what it says is known to have arrived."""

from __future__ import annotations

import asyncio

from agent.occasion import Occasion, Rhythm
from agent.streams import Mirror
from coordinator.core.redact import Redactor

RHYTHM = Rhythm(report_s=60.0, gather_s=60.0)


def occasion() -> Occasion:
    return Occasion(RHYTHM, Mirror(lambda: Redactor(())))


def test_the_first_report_is_due_at_once() -> None:
    async def run() -> None:
        async with asyncio.timeout(5):
            await occasion().due(full=False)

    asyncio.run(run())


def test_news_wait_for_company_and_urgent_ones_do_not() -> None:
    async def run() -> None:
        speaks = occasion()
        speaks.arrived(0, asyncio.get_running_loop().time())
        due = asyncio.create_task(speaks.due(full=False))
        await asyncio.sleep(0.05)
        speaks.tell()
        await asyncio.sleep(0.05)
        assert not due.done()
        speaks.tell(urgent=True)
        async with asyncio.timeout(5):
            await due
        speaks.taken()
        again = asyncio.create_task(speaks.due(full=False))
        await asyncio.sleep(0.05)
        assert not again.done(), "what was taken is not said twice"
        again.cancel()

    asyncio.run(run())


def test_a_report_that_was_under_way_does_not_count_as_delivered() -> None:
    async def run() -> None:
        speaks = occasion()
        under_way = speaks.spoken
        delivered = asyncio.create_task(speaks.delivered())
        await asyncio.sleep(0)
        speaks.arrived(under_way, 0.0)
        await asyncio.sleep(0.05)
        assert not delivered.done()
        speaks.arrived(speaks.spoken, 0.0)
        async with asyncio.timeout(5):
            await delivered

    asyncio.run(run())
