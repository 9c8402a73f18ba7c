"""An MCP server made with the official SDK: ``python mcp_sdk_server.py LOG [stdio | PORT]``. It logs its calls."""

import json
import os
import sys

import anyio
from mcp.server.mcpserver import MCPServer

LOG = sys.argv[1]
server = MCPServer("with-the-sdk")


def note(event: str, **fields: object) -> None:
    """A line of the log, as the stand-in writes it."""
    with open(LOG, "a", encoding="utf-8") as file:
        file.write(json.dumps({"event": event, "pid": os.getpid(), **fields}) + "\n")


@server.tool()
async def add(first: int, second: int) -> int:
    """Adds two numbers."""
    return first + second


@server.tool()
async def wait(name: str) -> str:
    """Waits for a minute, or until it is cancelled."""
    note("call", tool="wait", name=name)
    try:
        await anyio.sleep(60)
    except anyio.get_cancelled_exc_class():
        note("cancelled", name=name)
        raise
    return "waited"


note("start")
if sys.argv[2:] == ["stdio"]:
    server.run("stdio")
else:
    server.run("streamable-http", port=int(sys.argv[2]))
