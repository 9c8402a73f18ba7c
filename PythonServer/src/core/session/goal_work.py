"""What working on one leaf means: the model with its tools, or one tool as it is."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from core.agent.agent import Agent
from core.agent.ports import Asked
from core.agent.told import Told, told_in_history, told_messages
from core.agent.tool_batch import ToolBatch
from core.agent.tool_loop import answer_with_tools, batch_of_open_calls
from core.cancellation import Scope
from core.plan.goal import Goal
from core.provider.provider import ToolCall
from core.session.transcript import request_messages, results_for
from core.session.turn import Turn
from core.tool.tool import ToolFailed


def work_on(turn: Turn, goal: Goal, history: list[dict[str, Any]]) -> str:
    """The goal's result. ``Cancelled`` if it was stopped, ``ServerError`` if it failed."""
    agent, asked = agent_of(goal), asked_by(goal, goal.id, lambda text, scope: turn.say(goal, text, scope))
    if goal.tool is not None:
        return _run_tool(turn, goal, goal.tool, agent, asked)
    with turn.mail.joined(goal) as all_told, asked.scope.entered():
        told = [each for each in all_told if not goal.rounds.has_told(each.id)]  # one that is taken up again has heard
        messages = _messages_for(turn, goal, agent, history, told)
        return answer_with_tools(agent, messages, asked, turn, goal.rounds)


def _messages_for(
    turn: Turn, goal: Goal, agent: Agent, history: list[dict[str, Any]], told: list[Told]
) -> list[dict[str, Any]]:
    """What the goal begins with. ``told``: what the user has said in this turn so far."""
    instructions, prompt = agent.profile.instructions, goal.prompt or ""
    if goal.plan.depth:  # a sub-agent knows its prompt and nothing else
        return request_messages(instructions, [], prompt, None, results_for(goal))
    if goal.plan.has_several_leaves:
        history = [*history, *told_in_history(told)]
        return request_messages(instructions, history, prompt, turn.start.input, results_for(goal))
    asked = request_messages(instructions, history, prompt, None, results_for(goal))
    return [*asked, *told_messages(told, follows_user=True)]


def agent_of(goal: Goal) -> Agent:
    """Who works on it."""
    assert isinstance(goal.agent, Agent)
    return goal.agent


def _drop(text: str, scope: Scope) -> None:
    """Text that is shown to nobody."""


def asked_by(goal: Goal, goal_id: str | None, on_text: Callable[[str, Scope], None] = _drop) -> Asked:
    """The goal as an agent sees it; ``goal_id`` None: its events are not shown as a goal's."""
    assert goal.scope is not None
    return Asked(goal, goal_id, goal.scope, on_text)


def _run_tool(turn: Turn, goal: Goal, tool: dict[str, Any], agent: Agent, asked: Asked) -> str:
    """A goal that is one tool call. The tool's own failure is the goal's, and so is its stop."""
    batch = batch_of_open_calls(goal.rounds, agent.profile.tools, asked, turn)
    if batch is None:
        call = ToolCall("", tool["name"], json.dumps(tool["arguments"], ensure_ascii=False))
        batch = ToolBatch([call], agent.profile.tools, asked, turn)
    result = batch.run()[0]
    batch.check_stopped()
    if result.is_error:
        raise ToolFailed(result.content)
    return result.content
