"""What a function says while it is at work: gathered, and under a cap."""

from __future__ import annotations

import threading

from core.cancellation import Cause, CauseWord
from core.surrogates import whole_text
from core.tool.output import Output
from core.tool.tool import ToolRun


class CappedProgress:
    """The progress of one call. What comes after the call's end is dropped, as of every tool."""

    def __init__(self, run: ToolRun, cap: int) -> None:
        self._run = run
        self._cap = cap
        # Taken in by whichever threads the function has.
        self._taking = threading.Lock()
        self._output = Output(cap, run.emit)

    def __call__(self, text: str) -> None:
        """See :class:`core.tool.function.schema.Progress`. More than the cap ends the call with cause ``output_limit``."""
        with self._taking:
            fits = self._output.take("stdout", whole_text(text).encode())
        if not fits:
            cause = Cause(CauseWord.OUTPUT_LIMIT, f"the progress was longer than {self._cap} bytes")
            self._run.limit(cause)

    def close(self) -> None:
        """Hand on what was said so far."""
        self._output.finish()
