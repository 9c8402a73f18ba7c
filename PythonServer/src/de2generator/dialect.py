"""The wire forms that the gateway speaks: the same scripts, each in its own words."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from de2generator import anthropic_strict, anthropic_wire, openai_wire, strict
from de2generator.anthropic_replies import StreamedMessage, WholeMessage
from de2generator.anthropic_request import parse_messages_request
from de2generator.call_log import CallLog
from de2generator.chat_request import ChatRequest, parse_chat_request
from de2generator.logged_call import LoggedCall
from de2generator.replies import StreamedReply, WholeReply
from de2generator.reply import Reply


@dataclass(frozen=True, slots=True)
class Dialect:
    """How one wire form is read, checked and answered."""

    parse: Callable[[bytes], ChatRequest]
    #: What a strict provider of this form would refuse, or None.
    find_fault: Callable[[ChatRequest], str | None]
    error_body: Callable[[int, str], dict[str, Any]]
    streamed: Callable[[web.BaseRequest, ChatRequest, LoggedCall, CallLog], Reply]
    whole: Callable[[web.BaseRequest, ChatRequest, LoggedCall, CallLog], WholeReply]


OPENAI = Dialect(
    parse_chat_request,
    lambda chat: strict.find_fault(chat.messages) or strict.find_name_fault(chat.body),
    openai_wire.error_body,
    StreamedReply,
    WholeReply,
)
ANTHROPIC = Dialect(
    parse_messages_request,
    lambda chat: anthropic_strict.find_fault(chat.body),
    anthropic_wire.error_body,
    StreamedMessage,
    WholeMessage,
)
