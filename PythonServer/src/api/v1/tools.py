"""The tools: what agents may call here, how each is stopped, and how the MCP servers are doing."""

from typing import Any, Literal

from flask import current_app
from flask_openapi import APIBlueprint, Tag
from pydantic import BaseModel, Field

from api.answers import LIST_PROBLEMS
from api.auth.jwt_middleware import current_caller
from api.schemas import BEARER
from core.base.Main import Main
from core.tool.tool import Stops

tool_routes = APIBlueprint("tools", __name__, abp_tags=[Tag(name="tools")], abp_security=BEARER)


class ToolView(BaseModel):
    """A tool, as a model is told of it, and its promise."""

    name: str
    description: str
    parameters: dict[str, Any] = Field(description="JSON Schema of the arguments")
    stops: Stops = Field(description="How a call is stopped")
    ends_within_ms: int = Field(description="A call that has not ended so long after its stop is left behind")
    timeout_ms: int | None = Field(
        description="The limit of every call; null: a call may say its own, or the tool has none"
    )


class AgentTools(BaseModel):
    """What one agent may call."""

    agent: str
    tools: list[str]


class McpServerView(BaseModel):
    """A server of MCP_SERVERS_FILE."""

    name: str
    state: Literal["connecting", "ready", "failed"]
    tools: int
    error: str | None = Field(default=None, description="Why it is not there")


class Tools(BaseModel):
    """All that is allowed on this server."""

    tools: list[ToolView]
    agents: list[AgentTools]
    mcp_servers: list[McpServerView]


@tool_routes.get("/v1/tools", responses={200: Tools, **LIST_PROBLEMS})
def list_tools() -> dict[str, Any]:
    """The tools of this server, which agent may call which, and how its MCP servers are doing."""
    current_caller()
    main: Main = current_app.extensions["runtime"].main
    return main.list_tools()
