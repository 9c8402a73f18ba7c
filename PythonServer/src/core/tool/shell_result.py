"""What the model reads of a shell command: of one that ended here, and of one that was lost with its server."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Final

from core.tool.output import SHOWN_BYTES, Excerpt
from core.tool.tool import ToolResult

#: The tool's name.
SHELL: Final = "shell"


@dataclass(frozen=True, slots=True)
class Note:
    """A last line for ``stderr``."""

    line: str
    #: Whether the command was ended, so that it has no exit code of its own.
    is_cut: bool = True
    is_interrupted: bool = False


def as_interrupted(cause: str) -> Note:
    """Of a command that a stop has ended."""
    return Note(f"the command was interrupted ({cause})", is_interrupted=True)


def shell_result(
    stdout: Excerpt, stderr: Excerpt, exit_code: int, note: Note | None, took_s: float | None
) -> ToolResult:
    """The result as :meth:`core.tool.shell.Shell.run` promises it. ``took_s``: None if nobody knows."""
    if note is not None and note.is_cut:
        exit_code = -1
    fields: dict[str, Any] = {
        "stdout": stdout.shown(),
        "stderr": stderr.shown() if note is None else _noted(stderr, note.line),
        "exit_code": exit_code,
        "success": exit_code == 0,
        "execution_time": None if took_s is None else round(took_s, 3),
    }
    if note is not None and note.is_interrupted:
        fields["interrupted"] = True
    return ToolResult(json.dumps(fields, ensure_ascii=False), is_error=exit_code != 0)


def _noted(stderr: Excerpt, line: str) -> str:
    shown = stderr.shown(SHOWN_BYTES - len(line) - 1)
    return shown + ("\n" if shown and not shown.endswith("\n") else "") + line


@dataclass(slots=True)
class Printed:
    """What a command had printed when its server went."""

    stdout: Excerpt = field(default_factory=Excerpt)
    stderr: Excerpt = field(default_factory=Excerpt)

    def take(self, stream: str, text: str) -> None:
        """The next piece."""
        (self.stderr if stream == "stderr" else self.stdout).add(text)

    def as_stopped(self, cause: str) -> str:
        """What the command would have returned if it had been stopped for that cause then."""
        return shell_result(self.stdout, self.stderr, -1, as_interrupted(cause), None).content
