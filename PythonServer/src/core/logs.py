"""Logs: one line an event on standard error. Our own lines never hold what a user or a model wrote, nor tokens.

A traceback ends with its exception's message, which may quote something.
"""

import logging
import sys

import structlog
from structlog.typing import Processor


def configure_logs(level: str) -> None:
    """Send every logger through structlog: coloured text on a terminal, else a JSON object a line.

    Tracebacks are plain: the richer ones show local variables, and with them tokens and messages.
    """
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.stdlib.PositionalArgumentsFormatter(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *_rendering()],
        )
    )
    logging.basicConfig(handlers=[handler], level=level.upper(), force=True)
    # It tells each plugin that it loads.
    logging.getLogger("alembic").setLevel(logging.WARNING)


def _rendering() -> list[Processor]:
    if sys.stderr.isatty():
        return [structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)]
    return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
