"""Axolotl's own word on a submission, before it is queued: asked beside the event loop, and never waited for long.

The schema's process (`checks/axolotl_process.py`) is started by the first submission and kept warm for the next ones.
Where there is no Axolotl beside the coordinator, or it is slow or broken, the submission goes on without it: the
prepare stage asks it again on every replica. Called by `submissions.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import structlog

from coordinator.checks.axolotl_process import Absent, AxolotlSchema, Unavailable
from coordinator.checks.deep import axolotls_word
from coordinator.checks.subject import Subject
from coordinator.core.catalogue import finding
from coordinator.core.protocol import Finding

log = structlog.get_logger(__name__)

# Behind the agent's and the training's processes of the same machine.
NICENESS = 10
_AGAIN = "The prepare stage asks it again, on every replica."


class SecondOpinion:
    """One for the service.

    Args:
        wait_s: so long a submission waits; 0: Axolotl is not asked.
    """

    def __init__(self, wait_s: float, schema: AxolotlSchema | None = None) -> None:
        self._wait_s = wait_s
        self._schema = schema or AxolotlSchema(niceness=NICENESS)
        # One thread, which the process is tied to; those of the event loop's own pool serve the store.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="axolotl")
        self._late: Future[tuple[Finding, ...]] | None = None

    async def on(self, subject: Subject, found: Sequence[Finding]) -> tuple[Finding, ...]:
        """What Axolotl refuses beyond `found`; a note where it could not be asked in time. Never raises.

        What Axolotl only remarks upon (CFG903) stands in the training's log.
        """
        if self._wait_s <= 0:
            return ()
        if self._late is not None and not self._late.done():
            return (_missed("Axolotl is still being imported beside the coordinator."),)
        self._late = None
        try:
            asked = self._thread.submit(axolotls_word, subject, tuple(found), self._schema)
        except RuntimeError:  # the service is ending
            return ()
        answer = asyncio.wrap_future(asked)
        answer.add_done_callback(_heard)
        # Not `wait_for`, which would wait for the thread as well.
        await asyncio.wait({answer}, timeout=self._wait_s)
        if not answer.done():
            if not asked.cancel():
                self._late = asked
            return (_missed(f"Axolotl did not answer within {self._wait_s:g} s."),)
        try:
            return tuple(one for one in answer.result() if one.code != "CFG903")
        except Absent:
            return ()
        except Unavailable as why:
            return (_missed(f"{why}."),)
        except Exception:
            log.exception("Axolotl's answer could not be read")
            return ()

    async def aclose(self) -> None:
        """End the process, whatever it does."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        await asyncio.to_thread(self._schema.close)


def _missed(why: str) -> Finding:
    log.info("a submission goes on without Axolotl's own word", why=why)
    return finding("CFG902", why, severity="note", hint=_AGAIN)


def _heard(answer: asyncio.Future[tuple[Finding, ...]]) -> None:
    """An answer that comes too late may be an exception that nobody asks for."""
    if not answer.cancelled():
        answer.exception()
