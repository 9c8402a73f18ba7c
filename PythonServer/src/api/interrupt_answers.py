"""The shapes of answers about questions to the user; see :mod:`api.answers`."""

from typing import Literal

from pydantic import BaseModel, Field

from api.answers import Time
from core.cancellation import CauseWord


class Interrupt(BaseModel):
    """A question of a tool call, and what became of it."""

    interrupt_id: str
    turn_id: str
    goal_id: str | None
    call_id: str
    status: Literal["pending", "answered", "declined", "cancelled", "expired"]
    question: str
    options: list[str] | None = Field(description="The possible answers; null: any text is one")
    answer: str | None
    comment: str | None
    cause: CauseWord | None = Field(description="Of the stop that cancelled it; null if its turn ended by itself")
    created_at: Time
    expires_at: Time | None
    settled_at: Time | None


class Interrupts(BaseModel):
    """Newest first."""

    interrupts: list[Interrupt]


class Resolved(BaseModel):
    """The question is settled by this."""

    interrupt_id: str
    run_id: str
    disposition: Literal["answered", "declined"]
    settled_at: Time
