"""A message of the user that went into a turn at work, and how it stands in a history."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from core.cancellation import CauseWord

#: What stands for the assistant between two user messages when nothing was said and nothing was cut off.
NOT_ANSWERED: Final = "[not answered yet]"


@dataclass(frozen=True, slots=True)
class Told:
    """One message. ``is_cut``: an answer was cut off before it, and what the model says next is a new one."""

    id: str
    text: str
    is_cut: bool = False


def told_messages(told: Sequence[Told], follows_user: bool) -> list[dict[str, Any]]:
    """As history: one user message; behind a user's, with an assistant's between them, since roles alternate."""
    if not told:
        return []
    asked = {"role": "user", "content": "\n\n".join(each.text for each in told)}
    if not follows_user:
        return [asked]
    is_cut = any(each.is_cut for each in told)
    return [{"role": "assistant", "content": placeholder(CauseWord.REDIRECT) if is_cut else NOT_ANSWERED}, asked]


def told_in_history(told: Sequence[Told]) -> list[dict[str, Any]]:
    """As history before a prompt, which is a user's message, too."""
    return [*told_messages(told, follows_user=False), {"role": "assistant", "content": NOT_ANSWERED}] if told else []


def placeholder(cause: str) -> str:
    """What stands for an assistant message when a stop came before any text."""
    return f"[stopped{' by the user' if cause == CauseWord.USER else ': ' + cause} before any text]"
