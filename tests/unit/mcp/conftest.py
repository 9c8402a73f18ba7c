"""The log of the stand-in server."""

from pathlib import Path

import pytest

from tests.support.mcp_kit import StandInLog


@pytest.fixture
def log(tmp_path: Path) -> StandInLog:
    """Of the stand-in server."""
    return StandInLog(tmp_path / "log")
