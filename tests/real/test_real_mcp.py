"""MCP servers that others have made: a published one as it is installed, and one of the official SDK on each transport."""

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.api_client import PATIENCE_S
from tests.support.five_checks import five_checks
from tests.support.mcp_kit import McpCall, StandInLog, mcp_servers, results_of, wait_state, write_config
from tests.support.model_server import ModelServer, script
from tests.support.servers import ServerProcess, wait_until

pytestmark = pytest.mark.real

SDK_SERVER = Path(__file__).parents[1] / "support" / "mcp_sdk_server.py"


def test_an_agent_asks_a_published_server(models: ModelServer, tmp_path: Path, key: str) -> None:
    entry = {"command": sys.executable, "args": ["-m", "mcp_server_time", "--local-timezone", "UTC"]}
    file = write_config(tmp_path / "mcp.json", time=entry)
    arguments = {"source_timezone": "Asia/Tokyo", "time": "12:00", "target_timezone": "UTC"}
    line = script(
        "toolcall", name="time__convert_time", arguments=json.dumps(arguments, separators=(",", ":")), key=key
    )
    with ServerProcess(tmp_path, models.url, TOOLS_ALLOWED="mcp:time", MCP_SERVERS_FILE=str(file)) as server:
        found: list[str] = []

        def answers() -> bool:
            run = server.api().start(line)
            run.wait_parked()  # at first the server's tools are not there yet
            found[:] = results_of(run)
            return bool(found) and "there is no tool" not in found[0]

        wait_until(answers, "the tools of the server")
        assert "T03:00:00+00:00" in found[0]
        assert "-9.0h" in found[0]
        run = server.api().start(line)
        run.wait_parked()
        five_checks(run, models, key)
        assert models.calls(key=key)[-1].tools == ["time__get_current_time", "time__convert_time"]


@pytest.fixture(params=["stdio", "http"])
def entry(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[dict[str, Any]]:
    """The server made with the SDK, over each transport."""
    command = [sys.executable, str(SDK_SERVER), str(tmp_path / "log")]
    if request.param == "stdio":
        yield {"command": command[0], "args": [*command[1:], "stdio"]}
        return
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = subprocess.Popen([*command, str(port)], stderr=subprocess.DEVNULL)
    try:
        yield {"url": f"http://127.0.0.1:{port}/mcp"}
    finally:
        process.kill()
        process.wait(PATIENCE_S)


def test_a_stop_reaches_the_code_of_a_tool_made_with_the_sdk_and_no_other_call(
    tmp_path: Path, entry: dict[str, Any]
) -> None:
    log = StandInLog(tmp_path / "log")
    with mcp_servers(tmp_path, sdk=entry) as servers:
        wait_state(servers, "ready")
        assert McpCall(servers, "sdk__add", first=1, second=2).content() == "3"
        stopped, other = McpCall(servers, "sdk__wait", name="stopped"), McpCall(servers, "sdk__wait", name="other")
        log.wait("call", 2)
        stopped.stop()
        assert stopped.receipt() == ("cancelled", "cancel notice sent")
        log.wait("cancelled", name="stopped")
        assert log.of("cancelled", name="other") == []
        assert McpCall(servers, "sdk__add", first=3, second=4).content() == "7"
        other.stop()
        log.wait("cancelled", name="other")
