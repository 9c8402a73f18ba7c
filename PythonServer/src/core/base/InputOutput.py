"""The documented stop flag, kept as a mirror of the scopes.

``plan_is_stopped[0]`` is true while some live plan of this process is stopped. It is there for code that reads it;
nothing decides by it, and direct writes to it are unsupported. The truth is the scope: :func:`is_stopped` and
:func:`set_stopped` act on the plan of the current scope, else on the process's global plan, so that a stop of one
plan never reads as a stop of another. ``set_stopped(False)`` never un-cancels a scope: a new turn is a new scope.
"""

import threading
from typing import Final

from core.cancellation import Cause, CauseWord, Level, Scope, current_scope

#: A list, so that imported references see the change.
plan_is_stopped: Final = [False]

_lock = threading.Lock()
# Turn scopes of the live plans, oldest first; the last one is the global plan's.
_live: Final[dict[Scope, bool]] = {}


def open_flag(scope: Scope) -> None:
    """A plan begins to live under this turn scope, with a clear flag."""
    with _lock:
        _live[scope] = scope.is_stopped
        _mirror()


def close_flag(scope: Scope) -> None:
    """The plan is over; its stop, if it had one, is over with it."""
    with _lock:
        _live.pop(scope, None)
        _mirror()


def set_stopped(value: bool, scope: Scope | None = None) -> None:
    """Stop the plan (``True``), or note that its stop has been dealt with (``False``).

    The plan is that of ``scope``, else of the current scope, else the global one. ``True`` cancels its scope with
    cause ``user`` unless it is stopped already; ``False`` clears the mirror only.
    """
    turn = _turn_of(scope)
    if turn is None:
        return
    if value:
        turn.cancel(Cause(CauseWord.USER))
    with _lock:
        if turn in _live:
            _live[turn] = value
        _mirror()


def is_stopped() -> bool:
    """Whether the plan of the current scope, else the global plan, is stopped."""
    turn = _turn_of(None)
    return turn is not None and turn.is_stopped


def global_scope() -> Scope | None:
    """The turn scope of the newest live plan of this process."""
    with _lock:
        return next(reversed(_live), None)


def _turn_of(scope: Scope | None) -> Scope | None:
    here = scope or current_scope()
    turn = here.enclosing(Level.TURN) if here is not None else None
    return turn or global_scope()


def _mirror() -> None:
    plan_is_stopped[0] = any(_live.values())
