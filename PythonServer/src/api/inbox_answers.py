"""The shapes of answers about messages; see :mod:`api.answers`."""

from typing import Literal

from pydantic import BaseModel, Field

from api.answers import Time


class WaitingMessage(BaseModel):
    """A message that waits; held since a stop."""

    message_id: str
    text: str
    mode: Literal["queue", "steer", "redirect", "interrupt"]
    goal_id: str | None = Field(description="The goal that it is for; null: all")
    held: bool
    created_at: Time


class Inbox(BaseModel):
    """In the order in which they will be delivered."""

    messages: list[WaitingMessage]


class MessageView(BaseModel):
    """A message and its fate. turn_id and position: where it was delivered; position 0 has started that turn."""

    message_id: str
    text: str
    mode: Literal["queue", "steer", "redirect", "interrupt"]
    goal_id: str | None
    state: Literal["queued", "held", "delivered", "returned", "withdrawn"]
    turn_id: str | None
    position: int | None
    created_at: Time
    settled_at: Time | None


class MessageWithdrawn(BaseModel):
    """It will not be delivered."""

    message_id: str
    state: Literal["withdrawn"]
