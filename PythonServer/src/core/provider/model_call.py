"""One model request in flight, and the ways in which it is stopped."""

import threading
import uuid
from typing import Protocol

from core.call import Call, CallKind, Outcome
from core.cancellation import Cancelled, Scope
from core.clock import alarm_clock
from core.errors import ProviderError
from core.gates import pause_at


class Wire(Protocol):
    """The socket under a call; see :mod:`core.network.abortable`."""

    def shut(self) -> None:
        """Hang up, from any thread, in any phase; at once, without blocking, repeatable."""


class Asker(Protocol):
    """What a call needs of its provider in order to be asked for."""

    can_be_asked: bool

    def ask_cancel(self, call: "ModelCall", timeout_s: float) -> str:
        """See :meth:`core.provider.provider.Provider.ask_cancel`."""


class ModelCall(Call):
    """One attempt of one model request.

    How it stops: a server that knows no cancel request, and any request that is not yet sent, is *aborted*:
    the socket is shut. A sent request to a server that can be asked *is asked*, and shut when the stop's
    deadline passes, when the answer is not a yes, or 100 ms after a yes that had no effect.
    """

    #: Seconds that a request may live on after the server said ``cancelled``.
    GRACE_S = 0.1

    def __init__(
        self, scope: Scope, goal_id: str | None, wire: Wire, asker: Asker, cancel_timeout_s: float
    ) -> None:
        super().__init__(CallKind.MODEL_CALL, scope, goal_id)
        #: The request token: sent in the metadata, registered on the agent, named to ``/v1/cancel``.
        self.token = uuid.uuid4().hex
        self.wire = wire
        self._asker = asker
        self._cancel_timeout_s = cancel_timeout_s
        self._phase = threading.Lock()
        self._is_sent = False
        self._is_asked = False

    @property
    def is_sent(self) -> bool:
        """Whether the request has left, at least in part."""
        return self._is_sent

    @property
    def is_asked(self) -> bool:
        """Whether somebody asks, or has asked, the server to cancel it; that one then settles the outcome."""
        return self._is_asked

    def mark_sent(self) -> None:
        """The request is about to leave: from now on the server may know the token.

        Raises ``Cancelled`` if a stop came first, so that a request that was shut before it was sent is never sent.
        """
        pause_at("model_call.before_sent")
        with self._phase:
            was_sent, self._is_sent = self._is_sent, True
        try:
            self.scope.checkpoint()
        except Cancelled:
            with self._phase:
                self._is_sent = was_sent
            raise

    def abort(self) -> None:
        """The scope's abort. Cuts the call, or sets the bound under which it must yield to being asked."""
        with self._phase:
            must_wait = self._asker.can_be_asked and self._is_sent
        if must_wait:
            # The stop asks next (Plan.cancel_llm_requests). Whoever forgets to ask is still bounded.
            alarm_clock.after(self._cancel_timeout_s, self._cut_at_deadline)
        else:
            self._cut("socket shut")

    def cancel_request(self, timeout_s: float) -> None:
        """Ask the server to cancel this request; cut it unless it agrees. Blocks ``timeout_s`` at most."""
        with self._phase:
            if not (self._asker.can_be_asked and self._is_sent) or self._is_asked or self.outcome is not None:
                return
            self._is_asked = True
        if timeout_s <= 0:
            self._cut_if_running("there was no time left to ask the gateway")
            return
        try:
            answer = self._asker.ask_cancel(self, timeout_s)
        except ProviderError as error:
            self._cut("socket shut", f"the gateway did not cancel: {error.detail}")
            return
        self.settle(Outcome.CANCELLED, f"gateway answered {answer}")
        if not self.ended.is_set():
            alarm_clock.after(self.GRACE_S, self._hang_up_if_running)

    def _cut_at_deadline(self) -> None:
        was_asked = self._is_asked
        self._cut_if_running(
            "the gateway did not answer in time" if was_asked else "there was no time left to ask the gateway"
        )

    def _cut_if_running(self, why: str) -> None:
        if not self.ended.is_set():
            self._cut("socket shut", why)

    def _hang_up_if_running(self) -> None:
        if not self.ended.is_set():
            self.wire.shut()

    def _cut(self, how: str, detail: str | None = None) -> None:
        self.wire.shut()
        self.settle(Outcome.ABORTED, how, detail)
