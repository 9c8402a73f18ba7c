"""Imports run one way; see the contracts in pyproject.toml."""

import subprocess
import sys

from tests.architecture.sources import ROOT


def test_no_import_climbs_the_ladder() -> None:
    linter = "import sys; from importlinter.cli import lint_imports_command; sys.exit(lint_imports_command())"
    done = subprocess.run(
        [sys.executable, "-c", linter, "--no-cache"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 broken" in done.stdout
