"""The shell tool: a command, its output, and the promise that nothing of it outlives the call."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from core.call import Outcome
from core.cancellation import Cause, CauseWord
from core.gates import pause_at
from core.tool.output import Excerpt, Output
from core.tool.shell_result import SHELL, Note, as_interrupted, shell_result
from core.tool.supervised import Ending, SupervisedCommand
from core.tool.supervisor import FAILED, ITSELF, NEVER, TERM
from core.tool.tool import Stops, Tool, ToolFailed, ToolResult, ToolRun

#: What of the server's environment a command may see, unless the constructor is told otherwise.
ALLOWED_VARIABLES: Final = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TERM", "TMPDIR")
OUTPUT_CAP: Final = 1024 * 1024
DEFAULT_TIMEOUT_MS: Final = 120_000
MAX_TIMEOUT_MS: Final = 600_000
#: Seconds between TERM and KILL.
GRACE_S: Final = 1.0


class Shell(Tool):
    """Runs ``/bin/sh -c command`` without input.

    When a call has ended, *however*, everything that it started has ended: background jobs too, and what left the
    process group, the session or its parent. It does not reach what the command asked somebody else to start, such as
    a container engine or cron.
    """

    name = SHELL
    description = (
        "Run a command with /bin/sh -c and return its output and exit code as JSON. It has no input and no terminal. "
        "Everything it starts is ended when it returns, background jobs too."
    )
    stops = Stops.ABORTS
    #: The grace, and what :mod:`core.tool.supervised` gives a supervisor that says nothing.
    ends_within_s = 1.75

    def __init__(
        self, work_dir: Path, environment: Mapping[str, str] | None = None,
        output_cap: int = OUTPUT_CAP, grace_s: float = GRACE_S, default_timeout_ms: int = DEFAULT_TIMEOUT_MS,
    ) -> None:  # fmt: skip
        """``environment`` is all that a command sees; the default is ``ALLOWED_VARIABLES`` of the server's own."""
        self._default_timeout_ms = default_timeout_ms
        self._work_dir = work_dir
        self._environment = dict(_allowed() if environment is None else environment)
        self._output_cap = output_cap
        self._grace_s = grace_s
        self.parameters: dict[str, Any] = {
            "type": "object",
            "properties": {
                "command": {"type": "string", "description": "what /bin/sh runs"},
                "cwd": {"type": "string", "description": "the folder it runs in; relative to the working folder"},
                "timeout_ms": {
                    "type": "integer", "minimum": 1, "maximum": max(MAX_TIMEOUT_MS, default_timeout_ms),
                    "default": default_timeout_ms,
                    "description": "the command is ended after this time",
                },
            },
            "required": ["command"],
            "additionalProperties": False,
        }  # fmt: skip

    def run(self, arguments: dict[str, Any], run: ToolRun) -> ToolResult:
        """``content`` is a JSON object: stdout, stderr, exit_code, success, execution_time (seconds), interrupted?.

        A stop returns what there is so far, ``exit_code`` -1 and ``interrupted`` true. A limit of its own does the
        same without ``interrupted``. An exit code other than 0 is an error result too.
        """
        began = time.monotonic()
        timeout_s = arguments.get("timeout_ms", self._default_timeout_ms) / 1000
        output = Output(self._output_cap, run.emit)
        ending = self._execute(arguments["command"], self._folder(arguments.get("cwd")), timeout_s, output, run)
        output.finish()
        _settle(run, ending, self._grace_s)
        note, took_s = self._note(run, ending, timeout_s), time.monotonic() - began
        return shell_result(Excerpt(output.text("stdout")), Excerpt(output.text("stderr")), ending.exit_code, note, took_s)

    def _folder(self, cwd: str | None) -> Path:
        with contextlib.suppress(OSError):  # an earlier command may have removed it
            self._work_dir.mkdir(parents=True, exist_ok=True)
        folder = self._work_dir / (cwd or "")
        try:
            if folder.is_dir():
                return folder
        except (OSError, ValueError):
            pass
        raise ToolFailed(f"there is no folder {cwd or str(folder)!r}")

    def _execute(self, line: str, cwd: Path, timeout_s: float, output: Output, run: ToolRun) -> Ending:
        def take(stream: str, data: bytes) -> bool:
            if output.take(stream, data):
                return True
            run.limit(Cause(CauseWord.OUTPUT_LIMIT, f"the output was longer than {self._output_cap} bytes"))
            return False

        with SupervisedCommand(line, cwd, self._environment, self._grace_s, run.id) as command:
            abort = run.add_abort(command.request_stop)
            alarm = run.limit_time(timeout_s)
            try:
                pause_at("shell.before_start")
                command.start()
                return command.wait(take)
            finally:
                alarm.call_off()
                run.scope.forget(abort)

    def _note(self, run: ToolRun, ending: Ending, timeout_s: float) -> Note | None:
        """What the model must know beyond the command's own words, such as why it did not end by itself."""
        if run.limit_hit is CauseWord.OUTPUT_LIMIT:
            return Note(f"the output was longer than {self._output_cap} bytes; the command was ended")
        if ending.how == ITSELF:
            left = "a process that the command left behind could not be ended"
            return None if ending.is_all_gone else Note(left, is_cut=False)
        if run.limit_hit is not None:
            return Note(f"the command was ended after {timeout_s:g} s")
        if run.scope.cause is not None:
            return as_interrupted(run.scope.cause.word)
        return Note("the command's supervisor was killed, so what the command had started was ended")


def _allowed() -> dict[str, str]:
    return {name: os.environ[name] for name in ALLOWED_VARIABLES if name in os.environ}


def _settle(run: ToolRun, ending: Ending, grace_s: float) -> None:
    """Note what a stop, or a limit, made of the call. Raises if the stop came before there was anything to end."""
    if ending.how == FAILED:
        raise ToolFailed(f"/bin/sh could not be started: {os.strerror(ending.exit_code)}")
    if not run.scope.is_stopped:
        return
    if not ending.is_all_gone:
        run.settle(Outcome.ABANDONED, "a process could not be killed")
    elif ending.how == NEVER:
        run.settle(Outcome.NOT_STARTED, "never began")
        if run.limit_hit is None:
            run.scope.checkpoint()
    elif ending.how == ITSELF:
        run.settle(Outcome.ALREADY_DONE, "it had finished")
    elif ending.how == TERM:
        run.settle(Outcome.KILLED, "ended by TERM")
    else:
        run.settle(Outcome.KILLED, f"ended by KILL after {grace_s:.1f} s")
