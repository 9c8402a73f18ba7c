"""The tool loop: the model, its tools, the model again, with a checkpoint between the steps."""

from __future__ import annotations

from typing import Any, Final

from core.agent.agent import Agent
from core.agent.ports import Asked, TurnPort
from core.agent.rounds import Rounds
from core.agent.tool_batch import ToolBatch
from core.errors import ProviderError, ProviderNonsense, ProviderSilent
from core.gates import pause_at
from core.provider.provider import ModelRequest
from core.tool.tool import Tool

#: A model that calls tools so many times in a row does not come to an end.
MAX_ROUNDS: Final = 50


def answer_with_tools(
    agent: Agent, messages: list[dict[str, Any]], asked: Asked, port: TurnPort, rounds: Rounds
) -> str:
    """The model's answer to ``messages``, after as many rounds of tools as it asks for; ``rounds`` is the goal's own.

    It may be empty after a round: a model that has done its work need not speak of it. Raises ``ProviderError`` if the
    model fails or does not come to an end, ``Cancelled`` on a stop. A tool that fails ends nothing: the model reads its
    error.
    """
    for _ in range(MAX_ROUNDS):
        tools = dict(agent.profile.tools)  # as they are now: servers of tools come and go
        offered = [describe_tool(tool) for tool in tools.values()]
        request = ModelRequest([*messages, *rounds.messages()], agent.profile.model, offered)
        try:
            reply = agent.ask(request, asked, port)
        except ProviderSilent:
            if not rounds.has_calls:
                raise
            return ""
        if not reply.tool_calls:
            return reply.text
        if not tools:
            name = reply.tool_calls[0].name
            raise ProviderNonsense(f"the model asked for the tool {name!r}, which it was not offered")
        ToolBatch(reply.tool_calls, tools, asked, port).run()
        pause_at("tool_loop.between_steps")
        # Whatever the tools made of a stop, nothing is asked after it.
        asked.scope.checkpoint()
    raise ProviderError(f"the model called tools {MAX_ROUNDS} times in a row and gave no answer")


def describe_tool(tool: Tool) -> dict[str, Any]:
    """A tool as a model is told of it."""
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": function}
