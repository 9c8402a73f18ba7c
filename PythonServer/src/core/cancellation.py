"""THE stop module: a tree of scopes, and what it means to stop one.

The contract that everything else calls
---------------------------------------
A :class:`Scope` is a node of the tree process > run > turn > goal > call.

* A stop runs *down*. ``scope.cancel(cause)`` stops the scope and all below it, never a parent or a sibling.
* A scope is never un-stopped. A new turn is a new scope. A scope that is opened under a stopped parent is
  born stopped, so whatever starts during a stop meets the stop at its first :meth:`Scope.checkpoint`.
* The first end wins. ``cancel`` and ``finish`` race under one lock and exactly one of them decides how the
  scope ended; the other is told. This is the only arbiter between "stopped" and "finished an instant ago".
* A stop may depend on a *claim*: "only if nothing has happened since I looked". The claim is entered before the
  lock is taken and left before the aborts run. What would void it comes before, and then the stop changes
  nothing, or it comes after the stop.
* Whoever blocks registers an *abort* first: ``with scope.on_cancel(wake): blocking_line()``. Aborts run once,
  on the thread that cancels, after the lock is released, each in its own ``try``. They must not block.
* Nothing polls. :meth:`Scope.sleep` and :meth:`Scope.wait_for` wait for work *or* stop.
* A stop travels as :class:`Cancelled`, a ``BaseException``: ``except Exception`` around a model call, a retry
  loop or a tool does not swallow it. Only this module builds one.

What is *not* promised: ``cancel`` does not wait for anything to end, and code that neither registers an abort
nor calls ``checkpoint`` is not interrupted. Such code is abandoned by whoever runs it.

Threads of a pool do not inherit context variables, so scopes are passed in constructors;
:func:`current_scope` is for tools and for the documented stop flag only.
"""

from __future__ import annotations

import contextlib
import contextvars
import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from types import TracebackType
from typing import Final, TypeVar

log = logging.getLogger(__name__)
T = TypeVar("T")


class Level(IntEnum):
    """How wide a scope is. A smaller number is wider."""

    PROCESS = 0
    RUN = 1
    TURN = 2
    GOAL = 3
    CALL = 4


class CauseWord(StrEnum):
    """Why something was stopped. Fixed words: they are stored, sent, and compared."""

    USER = "user"
    OPERATOR = "operator"
    DEADLINE = "deadline"
    OUTPUT_LIMIT = "output_limit"
    LIVENESS = "liveness"
    SHUTDOWN = "shutdown"
    SERVER_LOST = "server_lost"
    PARENT = "parent"
    DEPENDENCY = "dependency"
    CLIENT_GONE = "client_gone"
    REDIRECT = "redirect"


@dataclass(frozen=True, slots=True)
class Cause:
    """Why, and the caller's own words beside it. The words are kept and shown, never parsed."""

    word: CauseWord
    reason: str | None = None


class Verdict(StrEnum):
    """What a call of :meth:`Scope.cancel` found."""

    #: This call stopped it.
    FIRST = "first"
    #: It was being stopped already; the earlier cause stands.
    JOINED = "joined"
    #: It had finished, of itself or after an earlier stop (``is_stopped`` tells); nothing was changed.
    OVER = "over"
    #: The claim on which it depended did not hold any more; nothing was changed.
    VOID = "void"


_BUILD: Final = object()


class Cancelled(BaseException):
    """Control flow, not a failure: the scope in which this code runs was stopped.

    Catch it only where its scope was opened, told by identity, and raise on what is not yours.
    """

    def __init__(self, scope: Scope, cause: Cause, *, _key: object = None) -> None:
        if _key is not _BUILD:
            raise TypeError("a stop is raised by a scope; call scope.cancel(cause) and scope.checkpoint()")
        super().__init__(f"{scope.level.name.lower()} {scope.name} stopped: {cause.word}")
        self.scope = scope
        self.cause = cause


class GoalCancelledException(Cancelled):
    """The gateway answered 499: the model request of this goal was cancelled there.

    Whether we asked for it or an operator did at the gateway, the goal becomes CANCELLED.
    """


class Registration:
    """An abort that waits for its scope to stop; see :meth:`Scope.on_cancel`."""

    __slots__ = ("_abort", "_scope")

    def __init__(self, scope: Scope, abort: Callable[[], None]) -> None:
        self._scope = scope
        self._abort = abort

    def __enter__(self) -> Registration:
        self._scope._register(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._scope.forget(self)
        # What the abort provoked (a reset socket, a silently shortened body) must not pass for a failure or,
        # worse, for success: the stop is the truth, and the error is kept as its context.
        if (error is None or isinstance(error, Exception)) and self._scope.is_stopped:
            self._scope.checkpoint(error)

    def run(self) -> None:
        try:
            self._abort()
        except BaseException:  # also what is meant to end a thread: this one is somebody's who stops
            log.exception("an abort failed; the stop goes on")


class Scope:
    """One node of the tree. Make the root with ``Scope.root()``, the rest with :meth:`open`."""

    __slots__ = ("_aborts", "_cause", "_children", "_finished", "_lock", "level", "name", "parent")

    def __init__(self, level: Level, name: str, parent: Scope | None, lock: threading.Lock) -> None:
        self.level = level
        self.name = name
        self.parent = parent
        # One lock a tree: a stop must see a subtree that does not change under it. Held for microseconds.
        self._lock = lock
        self._cause: Cause | None = None
        self._finished = False
        self._children: set[Scope] | None = None
        self._aborts: list[Registration] | None = None

    @staticmethod
    def root(name: str = "process") -> Scope:
        """A new tree."""
        return Scope(Level.PROCESS, name, None, threading.Lock())

    def open(self, level: Level, name: str) -> Scope:
        """A child scope; born stopped, with the same cause, if this one is stopped."""
        child = Scope(level, name, self, self._lock)
        with self._lock:
            child._cause = self._cause
            if child._cause is None and not self._finished:
                if self._children is None:
                    self._children = set()
                self._children.add(child)
        return child

    # -- asking ------------------------------------------------------------------------

    @property
    def is_stopped(self) -> bool:
        """Whether this scope or a wider one was stopped before it finished."""
        return self._cause is not None

    @property
    def is_finished(self) -> bool:
        """Whether it has left the tree."""
        return self._finished

    @property
    def cause(self) -> Cause | None:
        """Why it was stopped, or None."""
        return self._cause

    def checkpoint(self, context: BaseException | None = None) -> None:
        """Raise :class:`Cancelled` if stopped; else nothing. Costs one attribute look-up."""
        cause = self._cause
        if cause is not None:
            raise Cancelled(self, cause, _key=_BUILD) from context

    def enclosing(self, level: Level) -> Scope | None:
        """This scope or the nearest wider one of that level."""
        scope: Scope | None = self
        while scope is not None and scope.level != level:
            scope = scope.parent
        return scope

    def is_within(self, outer: Scope) -> bool:
        """Whether this is ``outer`` or below it."""
        scope: Scope | None = self
        while scope is not None and scope is not outer:
            scope = scope.parent
        return scope is outer

    # -- ending: the first end wins ----------------------------------------------------

    def cancel(
        self, cause: Cause, first: Callable[[], None] | None = None, claim: AbstractContextManager[bool] | None = None
    ) -> Verdict:
        """Stop this scope and everything below it, then run their aborts on this thread.

        ``first`` runs before them, if this call is the one that stops the scope: nothing has been woken yet.
        ``claim`` yields whether the scope may be stopped at all, and keeps it so until it is left.
        """
        with contextlib.nullcontext(True) if claim is None else claim as holds, self._lock:
            if not holds:
                return Verdict.VOID
            if self._finished:
                return Verdict.OVER
            if self._cause is not None:
                return Verdict.JOINED
            aborts = self._stop_subtree(cause)
        if first is not None:
            Registration(self, first).run()
        for registration in aborts:
            registration.run()
        return Verdict.FIRST

    def _stop_subtree(self, cause: Cause) -> list[Registration]:
        aborts: list[Registration] = []
        waiting = [self]
        while waiting:
            scope = waiting.pop()
            if scope._cause is not None:
                continue
            scope._cause = cause
            if scope._aborts:
                aborts.extend(scope._aborts)
            if scope._children:
                waiting.extend(scope._children)
        return aborts

    def finish(self) -> Cause | None:
        """Leave the tree. Returns the cause if a stop came first, or None: from then on no stop can reach it."""
        with self._lock:
            if self.parent is not None and self.parent._children is not None:
                self.parent._children.discard(self)
            self._finished = True
            return self._cause

    def cancelled_by_peer(self, cause: Cause) -> GoalCancelledException:
        """The sentinel for a 499 answer, to be raised. If we were stopped ourselves, our cause stands."""
        return GoalCancelledException(self, self._cause or cause, _key=_BUILD)

    # -- blocking ----------------------------------------------------------------------

    def on_cancel(self, abort: Callable[[], None]) -> Registration:
        """Register how to wake the blocking line inside the ``with``.

        Entering raises :class:`Cancelled` if the scope is stopped already. Leaving forgets the abort, and turns
        an ordinary error, or a normal end, into :class:`Cancelled` if the scope was stopped meanwhile.
        """
        return Registration(self, abort)

    def add_abort(self, abort: Callable[[], None]) -> Registration:
        """Register an abort that outlives a block; raises if stopped already. Undo it with :meth:`forget`."""
        registration = Registration(self, abort)
        self._register(registration)
        return registration

    def _register(self, registration: Registration) -> None:
        with self._lock:
            if self._cause is None:
                if self._aborts is None:
                    self._aborts = []
                self._aborts.append(registration)
                return
        self.checkpoint()

    def forget(self, registration: Registration) -> None:
        """The abort is not needed any more. It may be running at this moment."""
        with self._lock:
            if self._aborts is not None and registration in self._aborts:
                self._aborts.remove(registration)

    def sleep(self, seconds: float) -> None:
        """Wait; a stop ends the wait at once and raises."""
        woken = threading.Event()
        with self.on_cancel(woken.set):
            woken.wait(seconds)

    def wait_for(self, work: Future[T], timeout: float | None = None) -> T:
        """The result of ``work``, or its error; ``TimeoutError`` after ``timeout``.

        :class:`Cancelled` as soon as the scope is stopped, and also if the work was done by the time the stop is
        seen: a stop is never passed over for a result. Never cancels ``work``: whoever started it says how it stops.
        """
        woken = threading.Event()
        work.add_done_callback(lambda _: woken.set())
        with self.on_cancel(woken.set):
            if not woken.wait(timeout):
                raise TimeoutError
        return work.result()

    @contextlib.contextmanager
    def entered(self) -> Iterator[Scope]:
        """Make this the :func:`current_scope` of the code inside, on this thread."""
        token = _current.set(self)
        try:
            yield self
        finally:
            _current.reset(token)

    def __repr__(self) -> str:
        state = f"stopped:{self._cause.word}" if self._cause else "finished" if self._finished else "open"
        return f"<Scope {self.level.name.lower()} {self.name} {state}>"

    def dump(self, depth: int = 0) -> str:
        """The tree below, one scope a line: for the stack-dump signal."""
        with self._lock:
            children = sorted(self._children or (), key=lambda scope: scope.name)
        return "\n".join(["  " * depth + repr(self), *(child.dump(depth + 1) for child in children)])


_current: contextvars.ContextVar[Scope | None] = contextvars.ContextVar("current_scope", default=None)


def current_scope() -> Scope | None:
    """The scope that this thread entered, for tools and the documented flag. None elsewhere."""
    return _current.get()
