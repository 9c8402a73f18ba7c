"""The servers of the stop matrix."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from core.gates import pause_at
from tests.support.mcp_kit import StandInLog, stdio_entry, wait_ready, write_config
from tests.support.model_server import ModelServer
from tests.support.servers import LocalServer
from tests.support.stop_matrix import AFTER_LAST_BYTE, World
from tests.support.stop_matrix_stops import LIMIT_MS


def settings(folder: Path, models: ModelServer, provider: str, tools: tuple[str, ...]) -> dict[str, Any]:
    """Of a server that talks to the models in this way, and allows these tools; what :class:`LocalServer` takes."""
    agents = folder / "agents.json"
    agents.write_text(json.dumps([{"name": "careful", "model": "first", "fallback_model": "second"}]), "utf-8")
    mcp = write_config(folder / "mcp.json", one=stdio_entry(StandInLog(folder / "mcp.log"), "child"))
    return {
        "data_dir": folder, "llm_url": models.url + ("/v1" if provider == "openai" else ""), "llm_provider": provider,
        "llm_api_key": "none", "agents_file": agents, "mcp_servers_file": mcp, "tools_allowed": tools,
        "tool_modules": ("tests.support.own_tools",), "http_private_networks": ("127.0.0.0/8",),
        "tool_timeout_ms": LIMIT_MS,
    }  # fmt: skip


def prepare(server: LocalServer, models: ModelServer, key: str) -> World:
    """A server that was just started, ready for any cell."""
    _hold_after_last_byte(server)
    world = world_of(server, models, key)
    if "mcp" in server.main.settings.tools_allowed:
        wait_ready(world.api, key, world.mcp)
    return world


def world_of(server: LocalServer, models: ModelServer, key: str) -> World:
    """A user of that server who has nothing yet."""
    return World(server, models, key, server.api(key), StandInLog(server.main.settings.data_dir / "mcp.log"))


def _hold_after_last_byte(server: LocalServer) -> None:
    """Let a gate hold the server's model calls when the whole answer is there, and nobody knows of it yet."""
    provider: Any = server.main._provider
    stream = provider.stream

    def held(request: Any, call: Any) -> Iterator[Any]:
        yield from stream(request, call)
        pause_at(AFTER_LAST_BYTE)

    provider.stream = held
