"""The coordinator's log: one structured line an event, on stderr; for people on a terminal, JSON elsewhere.

Our own events are written directly (a thousand replicas register within a second, each with a line);
lines of uvicorn and other libraries come through `logging` and look the same. No line holds a token:
secrets of this process are masked wherever they appear.
"""

from __future__ import annotations

import logging
import logging.config
import os
import sys
from collections.abc import Iterable, Sequence

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from coordinator.core.redact import Redactor

# Written by processors, never by what is logged.
_OURS = frozenset({"timestamp", "level"})
# The redactor ignores what is shorter.
_SHORTEST_SECRET = 8


def start(secrets: Iterable[str] = ()) -> None:
    """Sets logging up for this process. Called once, by `__main__.py`."""
    shared: Sequence[Processor] = (
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        _masking(Redactor.of_environment(os.environ, secrets)),
    )
    renderer: Processor = (
        structlog.dev.ConsoleRenderer(colors="NO_COLOR" not in os.environ)
        if sys.stderr.isatty()
        else structlog.processors.JSONRenderer()
    )
    structlog.configure(
        processors=[*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    logging.config.dictConfig(
        {
            "version": 1,
            "disable_existing_loggers": False,
            "formatters": {
                "structured": {
                    "()": structlog.stdlib.ProcessorFormatter,
                    "foreign_pre_chain": list(shared),
                    "processors": [structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
                }
            },
            "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "structured"}},
            # Libraries tell every connection at INFO; what matters of it is said by us or is a warning.
            "root": {"handlers": ["stderr"], "level": "WARNING"},
        }
    )


def _masking(redactor: Redactor) -> Processor:
    def mask(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
        for key, value in event.items():
            if isinstance(value, str) and len(value) >= _SHORTEST_SECRET and key not in _OURS:
                event[key] = redactor.mask_text(value)
        return event

    return mask
