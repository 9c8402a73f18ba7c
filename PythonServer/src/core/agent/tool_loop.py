"""The tool loop: the model, its tools, the model again, with a checkpoint between the steps."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from core.agent.agent import Agent
from core.agent.ports import Asked, TurnPort
from core.agent.rounds import Rounds
from core.agent.tool_batch import ToolBatch
from core.errors import ProviderError, ProviderNonsense, ProviderSilent
from core.gates import pause_at
from core.provider.provider import ModelRequest, ToolCall
from core.tool.ask_user import AskUser
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
    taken_up = batch_of_open_calls(rounds, agent.profile.tools, asked, port)
    if taken_up is not None:
        taken_up.run()
        asked.scope.checkpoint()
    for _ in range(MAX_ROUNDS):
        tools = dict(agent.profile.tools)  # as they are now: servers of tools come and go
        make_request = partial(_request, messages, rounds, agent.profile.model, [*map(describe_tool, tools.values())])
        try:
            reply = agent.ask(make_request, asked, port)
        except ProviderSilent:
            if not rounds.has_calls:
                raise
            return ""
        if not reply.tool_calls:
            return reply.text
        if not tools:
            name = reply.tool_calls[0].name
            raise ProviderNonsense(
                f"the model asked for the tool {name!r}, which it was not offered: the agent {agent.name!r} has no tools "
                "(see TOOLS_ALLOWED, and the agent's tools in AGENTS_FILE)"
            )
        ToolBatch(reply.tool_calls, tools, asked, port).run()
        pause_at("tool_loop.between_steps")
        # Whatever the tools made of a stop, nothing is asked after it.
        asked.scope.checkpoint()
    raise ProviderError(f"the model called tools {MAX_ROUNDS} times in a row and gave no answer")


def batch_of_open_calls(
    rounds: Rounds, tools: Mapping[str, Tool], asked: Asked, port: TurnPort
) -> ToolBatch | None:
    """What a goal had called in an earlier server, and waits for: its questions. None for a goal that begins here.

    They were allowed when they were asked, so their answers count.
    """
    calls = [ToolCall(call.id, call.name, call.arguments) for call in rounds.open_calls()]
    return ToolBatch(calls, {AskUser.name: AskUser(), **tools}, asked, port, is_noted=True) if calls else None


def _request(
    messages: list[dict[str, Any]], rounds: Rounds, model: str, offered: list[dict[str, Any]]
) -> ModelRequest:
    return ModelRequest([*messages, *rounds.messages_to_ask()], model, offered)


def describe_tool(tool: Tool) -> dict[str, Any]:
    """A tool as a model is told of it."""
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": function}
