"""The coordinator's log: one structured line an event, on stderr; for people on a terminal, JSON elsewhere.

Lines of uvicorn and other libraries go the same way. No line holds a token: secrets of this process are
masked wherever they appear.
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


def start(secrets: Iterable[str] = (), level: str = "INFO") -> None:
    """Sets logging up for this process. Called once, by `__main__.py`."""
    shared: Sequence[Processor] = (
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        _masking(Redactor.of_environment(os.environ, secrets)),
    )
    human = sys.stderr.isatty()
    renderer: Processor = (
        structlog.dev.ConsoleRenderer(colors="NO_COLOR" not in os.environ)
        if human
        else structlog.processors.JSONRenderer()
    )
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
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
            "root": {"handlers": ["stderr"], "level": level},
            # uvicorn tells every connection at INFO; what matters of it is said by us or is a warning.
            "loggers": {"uvicorn": {"level": "WARNING"}, "alembic": {"level": "WARNING"}},
        }
    )


def _masking(redactor: Redactor) -> Processor:
    def mask(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
        return {
            key: redactor.mask_text(value) if isinstance(value, str) else value
            for key, value in event.items()
        }

    return mask
