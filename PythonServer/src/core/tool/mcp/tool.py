"""A tool of an MCP server. A stop asks the server to cancel, and waits for nothing that it may still do."""

from __future__ import annotations

import queue
import time
from typing import TYPE_CHECKING, Any, Final

from core.call import Outcome
from core.cancellation import Cancelled, Cause, CauseWord, Registration
from core.gates import pause_at
from core.tool.mcp.call import Ended, Letter, StopAsked
from core.tool.mcp.listing import Listed
from core.tool.output import Output
from core.tool.tool import Stops, Tool, ToolFailed, ToolResult, ToolRun

if TYPE_CHECKING:
    from core.tool.mcp.servers import McpServers

#: Seconds for the cancel notice to leave. Mostly it takes a millisecond; a server that reads nothing can hold it up.
NOTICE_S: Final = 0.5


class McpTool(Tool):
    """Asks the server, and waits for its answer or a stop. Progress notifications become its output."""

    stops = Stops.IS_ASKED
    ends_within_s = NOTICE_S + 0.5

    def __init__(
        self, name: str, listed: Listed, server: str, servers: McpServers, timeout_s: float, output_cap: int
    ) -> None:
        self.name = name
        self.description = listed.description
        self.parameters = listed.parameters
        self.timeout_s = timeout_s
        self._remote_name = listed.name
        self._server = server
        self._servers = servers
        self._output_cap = output_cap

    def run(self, arguments: dict[str, Any], run: ToolRun) -> ToolResult:
        """What the server answers, as text. A stopped call raises; one that took too long is an error result."""
        letters: queue.SimpleQueue[Letter] = queue.SimpleQueue()
        output = Output(self._output_cap, run.emit)
        abort = _add_abort(run, letters)
        try:
            call_id = self._servers.begin_call(self._server, self._remote_name, arguments, letters.put)
            pause_at("mcp_tool.asked")
            ended = self._wait(letters, output, run)
            if ended is None:
                self._servers.cancel_call(call_id)
                ended = self._end_of_stopped(letters, run)
            return self._result(ended, run)
        finally:
            run.scope.forget(abort)
            output.finish()

    def _wait(self, letters: queue.SimpleQueue[Letter], output: Output, run: ToolRun) -> Ended | None:
        """How it ended; None if a stop came first."""
        while True:
            letter = letters.get()
            if isinstance(letter, Ended):
                return letter
            if isinstance(letter, StopAsked):
                return None
            if not output.take("stdout", letter.text.encode(errors="replace")):
                run.limit(Cause(CauseWord.OUTPUT_LIMIT, f"the output was longer than {self._output_cap} bytes"))

    def _end_of_stopped(self, letters: queue.SimpleQueue[Letter], run: ToolRun) -> Ended:
        """Waits for the notice to leave, and for nothing else."""
        deadline = time.monotonic() + NOTICE_S
        letter: Letter | None = None
        while not isinstance(letter, Ended):
            try:
                letter = letters.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                run.settle(Outcome.ABANDONED, "the cancel notice could not be sent in time")
                return Ended()
        if letter.answer is not None or letter.failure is not None:
            run.settle(Outcome.ALREADY_DONE, "it had finished")
        elif letter.notice_fault is not None:
            run.settle(Outcome.ABANDONED, f"the cancel notice could not be sent: {letter.notice_fault}")
        elif letter.was_sent:
            run.settle(Outcome.CANCELLED, "cancel notice sent")
        else:
            run.settle(Outcome.NOT_STARTED, "never began")
        return letter

    def _result(self, ended: Ended, run: ToolRun) -> ToolResult:
        if ended.failure is not None:
            raise ended.failure
        if ended.answer is not None:
            return self._servers.result_of(ended.answer)
        if run.limit_hit is None:
            run.scope.checkpoint()
            raise ToolFailed("the MCP servers are being closed")
        cause = run.scope.cause
        reason = cause.reason if cause is not None else None
        if not ended.was_sent:
            return ToolResult(f"ended: {reason}; the MCP server was never asked, because it was not there", True)
        return ToolResult(f"ended: {reason}; what the MCP server may still do is not waited for", True)


def _add_abort(run: ToolRun, letters: queue.SimpleQueue[Letter]) -> Registration:
    try:
        return run.scope.add_abort(lambda: letters.put(StopAsked()))
    except Cancelled:
        run.settle(Outcome.NOT_STARTED, "never began")
        raise
