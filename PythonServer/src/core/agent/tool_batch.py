"""The tool calls of one reply: run at once, each recorded with exactly one result, in the order of the calls.

The goal's own thread only waits here and lends its place to the tools. A stop reaches each call through its scope;
a call that has not begun never begins; one that does not end in time is left behind with its goal.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from core.agent.ports import Asked, TurnPort
from core.agent.rounds import parse_arguments
from core.call import CallKind, Outcome
from core.cancellation import Cancelled, Cause, CauseWord, Level
from core.clock import Alarm, alarm_clock
from core.gates import pause_at
from core.ids import new_id
from core.provider.provider import ToolCall
from core.surrogates import whole_text
from core.tool.arguments import misfit
from core.tool.tool import MAX_ABANDONED, Stops, Tool, ToolFailed, ToolResult, ToolRun

log = logging.getLogger(__name__)

class ToolBatch:
    """One batch; for one use."""

    def __init__(
        self, calls: list[ToolCall], tools: Mapping[str, Tool], asked: Asked, port: TurnPort, is_noted: bool = False
    ) -> None:
        """``is_noted``: the calls are open in the goal's rounds already, under the ids that they have here."""
        self._calls = calls
        self._is_noted = is_noted
        self._tools = tools
        self._asked = asked
        self._port = port
        self._lock = threading.Lock()
        # By id: what nobody has begun or called off yet, and what nobody has ended yet.
        self._unbegun: dict[str, ToolRun] = {}
        self._unended: set[str] = set()
        self._results: dict[str, ToolResult] = {}
        self._runs: list[ToolRun] = []

    def run(self) -> list[ToolResult]:
        """Run all calls; returns when each has ended. ``Cancelled`` if the goal was stopped, also just now."""
        runs = self._runs
        jobs: list[Callable[[], None]] = []
        try:
            for call in self._calls:
                run = self._open(call)
                runs.append(run)
                if not self._is_noted:
                    self._port.note_call(self._asked.owner, run.id, call.name, call.arguments)
                jobs.append(partial(self._execute, run, call))
            pause_at("tool_batch.before_tools")
            with self._asked.scope.on_cancel(self._call_off):
                # First in the queue, and before this thread gives up its place: else that would begin another goal.
                self._port.workers.submit(jobs, first=True)
                with self._port.workers.resting(self._asked.scope):
                    for run in runs:
                        run.ended.wait()  # bounded: aborted by the stop, or left behind with the goal
        finally:
            self._call_off()
        return [self._results[run.id] for run in runs]

    def check_stopped(self) -> None:
        """Raise ``Cancelled`` if a call was stopped by itself, by other than a limit of its own."""
        for run in self._runs:
            if run.limit_hit is None:
                run.scope.checkpoint()

    def _open(self, call: ToolCall) -> ToolRun:
        scope = self._asked.scope.open(Level.CALL, call.name)
        owner, port, call_id = self._asked.owner, self._port, call.id if self._is_noted else new_id("c")

        def emit(stream: str, text: str) -> None:
            with self._lock:  # nothing of a call follows its result
                if call_id in self._unended:
                    port.note_output(owner, call_id, stream, whole_text(text))

        tool = self._tools.get(call.name)
        kind = tool.kind if tool is not None else CallKind.TOOL
        run = ToolRun(scope, self._asked.goal_id, call.name, emit, call_id, kind)
        run.delegate = partial(port.delegate, owner, run)
        run.ask = partial(port.ask, owner, run)
        with self._lock:
            self._unbegun[run.id] = run
            self._unended.add(run.id)
        port.calls.add(run)
        scope.add_abort(partial(self._skip, run))
        return run

    def _claim(self, run: ToolRun) -> bool:
        """Whether it is for the caller to begin, or to call off, this run: exactly one may."""
        with self._lock:
            return self._unbegun.pop(run.id, None) is not None

    def _call_off(self) -> None:
        """What has not begun never begins; its result is written at the turn's end."""
        with self._lock:
            waiting = list(self._unbegun.values())
        for run in waiting:
            if self._claim(run):
                run.settle(Outcome.NOT_STARTED, "never began")
                run.scope.finish()
                self._port.calls.remove(run)

    def _skip(self, run: ToolRun) -> None:
        """A call that was stopped by itself while it waited for a place: it is over, and the others go on."""
        if self._asked.scope.is_stopped or not self._claim(run):
            return
        run.settle(Outcome.NOT_STARTED, "never began")
        with self._lock:
            self._unended.discard(run.id)
        self._end(run, _as_it_ended(run, None, run.scope.finish()))

    # -- one call, on a pool thread ----------------------------------------------------------

    def _execute(self, run: ToolRun, call: ToolCall) -> None:
        if not self._claim(run):
            return
        if run.scope.is_stopped:  # just now
            run.settle(Outcome.NOT_STARTED, "never began")
        worker = self._port.workers.current()
        run.leave_behind = partial(self._leave_behind, run, worker)
        result = self._result(run, call)
        with self._lock:
            if run.id not in self._unended:
                return  # it was left behind, and its result comes too late
            self._unended.discard(run.id)
        # From here on it has finished: a stop that comes now comes too late for this call.
        ended = _as_it_ended(run, result, run.scope.finish())
        pause_at("tool_batch.before_result")
        self._end(run, ended)

    def _leave_behind(self, run: ToolRun, worker: object | None) -> None:
        with self._lock:
            if run.id not in self._unended:
                return
            self._unended.discard(run.id)
            if worker is not None:  # still this call's: it cannot go on to another without this lock
                self._port.workers.abandon(worker)
        run.settle(Outcome.ABANDONED, "did not end in time; its late result is dropped")
        self._end(run, _as_it_ended(run, None, run.scope.finish()))

    def _end(self, run: ToolRun, result: ToolResult) -> None:
        try:
            self._results[run.id] = result
            self._port.note_result(self._asked.owner, run.id, result.content, result.is_error)
        finally:
            self._port.calls.remove(run)  # the goal's thread waits for it

    def _result(self, run: ToolRun, call: ToolCall) -> ToolResult | None:
        """None if the tool was stopped and has nothing to show."""
        tool = self._tools.get(call.name)
        if tool is None:
            return ToolResult(f"there is no tool {call.name!r}; there are: {', '.join(self._tools) or 'none'}", True)
        try:
            with bounded(tool, run), run.scope.entered():
                arguments = _fitting_arguments(tool, call.arguments)
                self._check_capacity(tool)
                return _checked(tool.run(arguments, run))
        except ToolFailed as failure:
            return ToolResult(failure.detail, True)
        except BaseException as error:  # whatever a tool does, it ends neither the server nor the goal
            if isinstance(error, Cancelled) and run.scope.is_stopped:
                return None
            log.exception("tool %s failed", call.name)
            return ToolResult(f"the tool failed: internal error ({type(error).__name__})", True)

    def _check_capacity(self, tool: Tool) -> None:
        if tool.stops is not Stops.ABORTS and self._port.workers.abandoned >= MAX_ABANDONED:
            raise ToolFailed(
                f"{MAX_ABANDONED} tool calls on this server did not end when they were stopped; until some of them "
                "have, it runs no tool that may do the same"
            )


@contextlib.contextmanager
def bounded(tool: Tool, run: ToolRun) -> Iterator[None]:
    """Inside, the call has the tool's time limit, and after a stop the time that the tool has promised to keep."""
    alarms: list[Alarm] = []

    def meet_stop() -> None:
        alarms.append(alarm_clock.after(tool.ends_within_s, run.leave_behind))

    if tool.timeout_s is not None:
        alarms.append(run.limit_time(tool.timeout_s))
    abort = None
    try:
        abort = run.add_abort(meet_stop)
        yield
    finally:
        if abort is not None:
            run.scope.forget(abort)
        for alarm in alarms:
            alarm.call_off()


def _checked(result: object) -> ToolResult:
    """What a tool returned, if it is what a tool must return."""
    if not isinstance(result, ToolResult) or not isinstance(result.content, str):
        raise TypeError(f"a tool must return a ToolResult with a text, not {type(result).__name__}")
    return ToolResult(whole_text(result.content), result.is_error)


def _as_it_ended(run: ToolRun, result: ToolResult | None, cause: Cause | None) -> ToolResult:
    """The result as the model reads it. ``cause``: a stop, or a limit of the tool's own, came before it had ended."""
    if cause is None:
        run.settle(Outcome.ALREADY_DONE, "it had finished")
        return result or ToolResult("", True)
    if run.outcome is Outcome.ALREADY_DONE and result is not None:
        return result  # it had ended by itself when the stop reached it
    run.settle(Outcome.ABORTED, "ended by the stop")
    if run.limit_hit is not None:
        left = "; it did not end, and what it may still do is not waited for" if result is None else ""
        left = left if run.outcome is Outcome.ABANDONED else ""
        return result or ToolResult(f"ended: {cause.reason or cause.word}{left}", True)
    return ToolResult(cancelled_text(cause.word, result.content if result is not None else ""), True)


def cancelled_text(cause: str, partial: str = "") -> str:
    """The result of a tool call that a stop ended. ``partial``: what the tool has returned all the same."""
    by_hand = (CauseWord.USER, CauseWord.OPERATOR)
    words = "cancelled by operator" if cause in by_hand else f"cancelled: {cause}"
    return f"{words}\n{partial}" if partial else words


def _fitting_arguments(tool: Tool, text: str) -> dict[str, Any]:
    """The arguments as the tool takes them, or ``ToolFailed`` that says what is wrong with them."""
    arguments = parse_arguments(text)
    if arguments is None:
        raise ToolFailed("the arguments do not fit the tool: they are not a JSON object")
    fault = misfit(tool, arguments)
    if fault is not None:
        raise ToolFailed(f"the arguments do not fit the tool: {fault}")
    return arguments
