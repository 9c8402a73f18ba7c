"""A wait of a goal: in the receipt, without a place in the pool, and over at once when it is stopped."""

import contextlib
from collections.abc import Iterator

from core.agent.ports import Asked, TurnPort
from core.call import Call, CallKind, Outcome
from core.cancellation import Cancelled, Level


@contextlib.contextmanager
def waiting(asked: Asked, port: TurnPort) -> Iterator[Call]:
    """Inside, ``asked`` waits on the scope of the call that is handed out, and on nothing else."""
    scope = asked.scope.open(Level.CALL, "wait")
    wait = Call(CallKind.WAIT, scope, asked.goal_id)
    port.calls.add(wait)
    try:
        scope.checkpoint()  # nothing is announced that a stop has forbidden already
        yield wait
        wait.settle(Outcome.ALREADY_DONE, "it was over")
    except Cancelled:
        wait.settle(Outcome.CANCELLED, "woken")
        raise
    finally:
        scope.finish()
        port.calls.remove(wait)
