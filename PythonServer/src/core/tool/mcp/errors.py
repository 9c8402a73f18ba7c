"""What goes wrong with an MCP server, in words for the model and the user."""

from __future__ import annotations

from typing import Final

from mcp import types
from mcp.shared.exceptions import MCPError

from core.tool.mcp.http import UNREACHABLE
from core.tool.tool import ToolFailed

_LENGTH: Final = 500


def words_for(server: str, error: MCPError) -> str:
    """Of an error that a call has ended with."""
    who, text = f"the MCP server {server!r}", " ".join(error.message.split())[:_LENGTH]
    if has_not_begun(error):
        return f"{who} is not there: {text}"
    if error.code != types.CONNECTION_CLOSED:
        return f"{who} answered with an error: {text}"
    return f"{who} was lost while it worked ({text}); whether it did what was asked is not known"


def has_not_begun(error: MCPError) -> bool:
    """Over HTTP: it could not be asked, or does not know our session any more; so it has not begun what was asked."""
    if error.code == types.CONNECTION_CLOSED:
        return error.message == UNREACHABLE
    return error.code == types.INVALID_REQUEST and error.message == "Session terminated"


def is_closed(error: MCPError) -> bool:
    """The SDK's own words for a session that has ended."""
    return error.code == types.CONNECTION_CLOSED and error.message == "Connection closed"


def text_of(error: BaseException) -> str:
    """One line."""
    error = first_of(error)
    if isinstance(error, OSError) and error.strerror:
        return f"it could not be started: {error.strerror}"
    text = error.detail if isinstance(error, ToolFailed) else " ".join(str(error).split())
    return (text or type(error).__name__)[:_LENGTH]


def first_of(error: BaseException) -> BaseException:
    """Of a group of errors, the first: the SDK wraps what goes wrong inside its tasks."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
