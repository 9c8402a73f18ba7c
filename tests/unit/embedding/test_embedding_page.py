"""The programs that docs/embedding.md shows run as they stand, and do what the page says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.support.model_server import ModelServer
from tests.support.shell_kit import Mark

PAGE = Path(__file__).parents[3] / "docs" / "embedding.md"


def run_example(title: str, models: ModelServer, folder: Path, **variables: str) -> str:
    """What the program below that heading prints."""
    section = PAGE.read_text("utf-8").partition(f"## {title}\n")[2].partition("\n## ")[0]
    (program,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    (folder / "example.py").write_text(program)
    environment = {"PATH": os.environ["PATH"], "LLM_BASE_URL": models.url, "DATA_DIR": str(folder), **variables}
    done = subprocess.run(
        [sys.executable, "-W", "error", "example.py"],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


def test_the_command_is_gone_and_the_outcome_says_so(models: ModelServer, tmp_path: Path) -> None:
    mark = Mark()
    variables = {"TOOLS_ALLOWED": "shell", "SHELL_ENVIRONMENT": "PATH,TEST_MARK", **mark.environment()}
    said = run_example("An agent with the shell, and a thread that stops it", models, tmp_path, **variables)
    assert mark.alive() == []
    first, *receipt = said.splitlines()
    found = re.fullmatch(r"cancelled: wrong way, over (\d\.\d{3}) s after the stop", first)
    assert found is not None, said
    assert float(found[1]) < 1  # no KILL was needed
    assert "process killed" in said or "tool killed" in said
    assert receipt[-1].startswith("goal cancelled")


def test_the_function_ends_by_itself_and_the_next_turn_runs(tmp_path: Path) -> None:
    with ModelServer(strict=True, tokens_per_second=500) as models:  # what it makes up takes long otherwise
        said = run_example("A function that ends by itself", models, tmp_path)
    stopped, after = said.splitlines()
    assert re.fullmatch(r"cancelled \['cancelled by operator\\ncounted to \d+'\]", stopped), said
    assert after == "completed"
