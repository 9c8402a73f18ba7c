"""The model requests that an agent has in flight, by the goal that each belongs to."""

import threading

from core.provider.model_call import ModelCall


class RequestRegistry:
    """Token by token: an entry is made before the request is sent and removed when it has ended, however."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_owner: dict[object, dict[str, ModelCall]] = {}

    def add(self, owner: object, call: ModelCall) -> None:
        """``owner`` is the goal, by identity: ids of handed-in goals are unique in their plan only."""
        with self._lock:
            self._by_owner.setdefault(owner, {})[call.token] = call

    def remove(self, owner: object, call: ModelCall) -> None:
        """The request has ended."""
        with self._lock:
            calls = self._by_owner.get(owner)
            if calls is not None:
                calls.pop(call.token, None)
                if not calls:
                    del self._by_owner[owner]

    def of(self, owner: object | None = None) -> list[ModelCall]:
        """The requests of one goal, or of all."""
        with self._lock:
            if owner is not None:
                return list(self._by_owner.get(owner, {}).values())
            return [call for calls in self._by_owner.values() for call in calls.values()]
