"""The function that docs/tools.md shows is a tool, is as short as the page says, and stops as the page says."""

import re
from pathlib import Path
from typing import Any

from core.call import Outcome
from core.cancellation import Cause, CauseWord, Level, Scope
from core.tool.python_function import FunctionTool, Stops
from core.tool.tool import ToolRun

PAGE = Path(__file__).parents[2] / "docs" / "tools.md"


def _shown() -> str:
    (block,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return str(block)


def test_the_function_on_the_page_is_short_and_stops(tmp_path: Path) -> None:
    for name in ("a.md", "b.md", "c.txt"):
        (tmp_path / name).write_text("one\ntwo\n")
    text = _shown()
    assert len([line for line in text.splitlines() if line.strip()]) <= 15
    space: dict[str, Any] = {"__name__": "my_tools"}
    exec(compile(text, str(PAGE), "exec"), space)
    made = FunctionTool(space["count_lines"], 4096, 120_000)
    assert (made.stops, list(made.parameters["properties"])) == (Stops.IS_ASKED, ["folder"])

    said: list[str] = []
    run = ToolRun(Scope.root().open(Level.CALL, "call"), "goal", "call", lambda _, piece: said.append(piece))
    assert made.run({"folder": str(tmp_path)}, run).content == '{"a.md":2,"b.md":2}'
    assert "".join(said) == "a.md\nb.md\n"

    def stop(_: str, piece: str) -> None:
        run.scope.cancel(Cause(CauseWord.USER))

    run = ToolRun(Scope.root().open(Level.CALL, "call"), "goal", "call", stop)
    assert made.run({"folder": str(tmp_path)}, run).content == '{"a.md":2}'
    assert run.outcome is Outcome.CANCELLED
