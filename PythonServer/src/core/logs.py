"""Logs: one line an event on standard error. They never hold what a user or a model wrote, nor tokens.

A traceback names its exceptions by their kind only: messages may quote anything. ``LOG_LEVEL=debug`` shows them.
"""

import io
import logging
import sys
import traceback
from collections.abc import Callable
from typing import TextIO

import structlog
from structlog.typing import ExcInfo, Processor


def configure_logs(level: str) -> None:
    """Send every logger through structlog: coloured text on a terminal, else a JSON object a line.

    Tracebacks are plain: the richer ones show local variables, and with them tokens and messages.
    """
    render = structlog.dev.plain_traceback if level == "debug" else _without_messages
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
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *_rendering(render)],
        )
    )
    logging.basicConfig(handlers=[handler], level=level.upper(), force=True)
    # It tells each plugin that it loads.
    logging.getLogger("alembic").setLevel(logging.WARNING)
    # They repeat what an MCP server says, as often as it says it.
    for name in ("mcp", "client", "httpx2"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    # It shows addresses with their queries when it meets headers that it cannot read.
    logging.getLogger("urllib3").setLevel(logging.ERROR)


def _rendering(render: Callable[[TextIO, ExcInfo], None]) -> list[Processor]:
    if sys.stderr.isatty():
        return [structlog.dev.ConsoleRenderer(exception_formatter=render)]
    return [structlog.processors.ExceptionRenderer(_Text(render)), structlog.processors.JSONRenderer()]


class _Text:
    """Renders an exception to a text."""

    def __init__(self, render: Callable[[TextIO, ExcInfo], None]) -> None:
        self._render = render

    def __call__(self, exc_info: ExcInfo) -> str:
        written = io.StringIO()
        self._render(written, exc_info)
        return written.getvalue().rstrip()


def _without_messages(stream: TextIO, exc_info: ExcInfo) -> None:
    """The frames of an exception and of those behind it, each with the exception's kind in place of its message."""
    shown = traceback.TracebackException(*exc_info)
    waiting: list[traceback.TracebackException | None] = [shown]
    while waiting:
        each = waiting.pop()
        if each is None:
            continue
        each._str = ""  # type: ignore[attr-defined]
        each.__notes__ = None
        if each.exc_type is not None and issubclass(each.exc_type, SyntaxError):  # it shows the line
            each.text, each.msg = None, ""  # type: ignore[assignment]
        waiting += [each.__cause__, each.__context__, *(each.exceptions or ())]
    stream.write("".join(shown.format()))
