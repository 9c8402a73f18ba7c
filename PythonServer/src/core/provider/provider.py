"""The provider interface: stream one reply, and say how it is stopped."""

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any, Protocol

from core.provider.model_call import ModelCall


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """What to ask. ``messages`` and ``tools`` are in the OpenAI chat-completions form, our inner form."""

    messages: list[dict[str, Any]]
    model: str
    tools: list[dict[str, Any]] = field(default_factory=list)
    #: Name of the one tool that the model must call, or None.
    must_call: str | None = None


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of the answer: whole UTF-8, never half a character."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """A piece of what the model thinks aloud."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A complete tool call; ``arguments`` is the model's own JSON text, not yet parsed."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens as the server counted them; None where it did not say."""

    input_tokens: int | None
    output_tokens: int | None


@dataclass(frozen=True, slots=True)
class Finish:
    """The last delta of a complete reply; ``reason`` as the server gave it (``stop``, ``length``, …)."""

    reason: str


Delta = Text | Reasoning | ToolCall | Usage | Finish


class Provider(Protocol):
    """A kind of model server."""

    #: Whether a call in flight can be cancelled by asking the server for it.
    can_be_asked: bool

    def stream(self, request: ModelRequest, call: ModelCall) -> Generator[Delta, None, None]:
        """One attempt, always streamed upstream. Blocks; stopped through ``call``.

        Raises ``ProviderError`` (its subclasses say whose fault; :mod:`core.provider.backoff` which are worth
        a retry), ``Cancelled`` if the call's scope was stopped, ``GoalCancelledException`` on a 499.
        A reply that ended without ``Finish`` is an error, never a short success. Close it if you leave early.
        """

    def ask_cancel(self, call: ModelCall, timeout_s: float) -> str:
        """Ask the server to cancel; ``cancelled`` or ``already_cancelled``, else ``ProviderError``.

        Only where ``can_be_asked``. Bounded by ``timeout_s`` whatever the server does.
        """

    def list_models(self, call: ModelCall) -> list[str]:
        """The names of the models that the server offers, as it lists them. Blocks; stopped through ``call``.

        Raises what :meth:`stream` raises. The server cannot be asked to cancel it: its asker must say so.
        """

    def close(self) -> None:
        """Close the pooled connections. Calls in flight go on."""
