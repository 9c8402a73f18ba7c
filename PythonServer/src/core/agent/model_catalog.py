"""The provider's list of models, kept for a while and shared by all agents."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Final

from core.agent.attempt import settle_stopped
from core.agent.ports import Asked, TurnPort
from core.agent.waiting import waiting
from core.call import Outcome
from core.cancellation import Cancelled, Level
from core.errors import ProviderError
from core.gates import pause_at
from core.network.abortable import AbortableSocket
from core.provider.model_call import ModelCall
from core.provider.provider import Provider

log = logging.getLogger(__name__)

#: Seconds for which a list is believed, and after which a refresh that failed is tried again.
FRESH_S: Final = 600.0
TRY_AGAIN_S: Final = 60.0


class ModelCatalog:
    """Asked for the list by many goals at once, it asks the provider once; the others wait, or take the old list.

    Whose call it is, is whose stop ends it; one of those who waited then asks in its place.
    """

    def __init__(self, provider: Provider, now: Callable[[], float] = time.monotonic) -> None:
        self._provider = provider
        self._now = now
        self._lock = threading.Lock()
        self._names: Sequence[str] | None = None
        self._good_until = 0.0
        #: Done when the call under way has ended: with its failure, or None.
        self._asking: Future[ProviderError | None] | None = None

    def names(self, asked: Asked, port: TurnPort) -> Sequence[str]:
        """The names. ``ProviderError`` if there is no list, not even an old one; ``Cancelled`` on a stop."""
        while True:
            with self._lock:
                if self._names is not None and (self._asking is not None or self._now() < self._good_until):
                    return self._names
                others = self._asking
                if others is None:
                    mine = self._asking = Future()
            if others is None:
                return self._refresh(mine, asked, port)
            with waiting(asked, port) as wait, port.workers.resting(wait.scope):
                failure = wait.scope.wait_for(others)
            if failure is not None:
                raise failure

    def _refresh(
        self, mine: Future[ProviderError | None], asked: Asked, port: TurnPort
    ) -> Sequence[str]:  # fmt: skip
        failure: ProviderError | None = None
        try:
            names = self._ask(asked, port)
            self._keep(names, FRESH_S)
            return names
        except ProviderError as error:
            old = self._names
            if old is None:
                failure = error
                raise
            log.warning("the list of models could not be refreshed, the old one is used: %s", error.code)
            self._keep(old, TRY_AGAIN_S)
            return old
        finally:
            with self._lock:
                self._asking = None
            mine.set_result(failure)

    def _keep(self, names: Sequence[str], seconds: float) -> None:
        with self._lock:
            self._names, self._good_until = names, self._now() + seconds

    def _ask(self, asked: Asked, port: TurnPort) -> Sequence[str]:
        """A model call like the others, except that its server cannot be asked to cancel it."""
        scope = asked.scope.open(Level.CALL, "model_list")
        call = ModelCall(scope, asked.goal_id, AbortableSocket(), _Unaskable(), 0.0)
        port.calls.add(call)
        try:
            pause_at("model_catalog.before_list")
            scope.checkpoint()
            names = tuple(self._provider.list_models(call))
            call.settle(Outcome.ALREADY_DONE, "it had finished")
            return names
        except Cancelled as stop:
            settle_stopped(call, stop)
            raise
        except ProviderError as error:
            call.settle(Outcome.FAILED, "it failed", error.detail)
            raise
        finally:
            scope.finish()
            port.calls.remove(call)


class _Unaskable:
    can_be_asked = False

    def ask_cancel(self, call: ModelCall, timeout_s: float) -> str:
        """Never called."""
        raise NotImplementedError("a list of models has no token")
