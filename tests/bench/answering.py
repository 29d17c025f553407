"""Waiting for a coordinator that has just been started; used by the benchmarks beside it."""

from __future__ import annotations

import asyncio
import time

import aiohttp


async def answering(url: str, within_s: float = 20.0) -> None:
    """Return as soon as this address answers 200."""
    until_s = time.monotonic() + within_s
    async with aiohttp.ClientSession() as session:
        while time.monotonic() < until_s:
            try:
                async with session.get(url) as answer:
                    if answer.status == 200:
                        return
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.01)
    raise SystemExit(f"{url} did not come up")
