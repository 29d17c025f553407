"""Starts the one agent of this replica: settings in, state folder taken, signals wired, one `Agent` run to its end.

Called by `__main__.py`, which says what its exit codes mean.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import os
import signal
import sys

import structlog

from agent import identity
from agent.discovery import hints_from
from agent.main import Agent
from agent.settings import AgentSettings, SettingsError
from coordinator.core.redact import Redactor, secrets_of
from coordinator.core.tied import LEAVE
from coordinator.core.whereabouts import BadHint

_PR_GET_PDEATHSIG = 2  # linux/prctl.h


def main() -> int:
    """Run the agent of this replica until it is asked to end."""
    try:
        settings = AgentSettings.from_environment()
        hints_from(settings)
    except (SettingsError, BadHint) as error:
        print(f"rankcall agent: {error}", file=sys.stderr)
        return 2
    _speak()
    try:
        identity.lock(settings.layout)
        who = identity.begin(settings.layout)
    except identity.StateInUse as error:
        print(f"rankcall agent: {error}", file=sys.stderr)
        return 1  # one that is just ending lets go of it: `rankcall up` tries again
    except OSError as error:
        print(
            f"rankcall agent: the state folder {settings.state_dir} cannot be used ({error.strerror or error}); "
            "set RANKCALL_STATE_DIR to a folder on container-local disk",
            file=sys.stderr,
        )
        return 2
    return asyncio.run(_run(settings, who))


async def _run(settings: AgentSettings, who: identity.Identity) -> int:
    log = structlog.get_logger("agent")
    end, leave = asyncio.Event(), asyncio.Event()
    by: list[signal.Signals] = []
    parent = os.getppid()

    def ask(number: signal.Signals) -> None:
        by.append(number)
        # A supervisor that was killed takes its agent along (core/tied.py), but that is nobody's wish to end training.
        (leave if _tied() and os.getppid() != parent else end).set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ask, number)
    loop.add_signal_handler(LEAVE, leave.set)
    loop.add_signal_handler(signal.SIGHUP, lambda: None)  # a console that goes away ends nothing
    try:
        await Agent(settings, who).run(end, leave)
    except Exception:  # said in the log like everything else; the supervisor starts the next one
        log.exception("the agent failed; what runs goes on, and the next agent takes it over")
        return 1
    return 130 if by[:1] == [signal.SIGINT] else 0


def _tied() -> bool:
    """Whether this process asked for a signal at the death of its parent."""
    asked = ctypes.c_int(0)
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_GET_PDEATHSIG, ctypes.byref(asked), 0, 0, 0)
    return asked.value != 0


def _speak() -> None:
    """Structured lines on stderr, without secrets: for a person at a terminal, else JSON like the coordinator's."""
    redactor = Redactor(secrets_of(os.environ))

    def mask(_: object, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        return {
            key: redactor.mask_text(value) if isinstance(value, str) else value
            for key, value in event.items()
        }

    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            mask,
            structlog.dev.ConsoleRenderer(colors="NO_COLOR" not in os.environ)
            if sys.stderr.isatty()
            else structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )
