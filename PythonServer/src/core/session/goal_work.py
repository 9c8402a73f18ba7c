"""What working on one leaf means: the model with its tools, or one tool as it is."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from core.agent.agent import Agent
from core.agent.ports import Asked
from core.agent.tool_batch import ToolBatch
from core.agent.tool_loop import answer_with_tools
from core.plan.goal import Goal
from core.provider.provider import ToolCall
from core.session.transcript import request_messages, results_for
from core.session.turn import Turn
from core.tool.tool import ToolFailed


def work_on(turn: Turn, goal: Goal, history: list[dict[str, Any]]) -> str:
    """The goal's result. ``Cancelled`` if it was stopped, ``ServerError`` if it failed."""
    agent, asked = agent_of(goal), asked_by(goal, goal.id, lambda text: turn.say(goal, text))
    if goal.tool is not None:
        return _run_tool(turn, goal.tool, agent, asked)
    is_part = goal.plan.has_several_leaves and not goal.plan.depth  # a sub-agent knows its prompt and nothing else
    messages = request_messages(
        agent.profile.instructions,
        history,
        goal.prompt or "",
        turn.start.input if is_part else None,
        results_for(goal),
    )
    with asked.scope.entered():
        return answer_with_tools(agent, messages, asked, turn, goal.rounds)


def agent_of(goal: Goal) -> Agent:
    """Who works on it."""
    assert isinstance(goal.agent, Agent)
    return goal.agent


def asked_by(goal: Goal, goal_id: str | None, on_text: Callable[[str], None] = lambda _: None) -> Asked:
    """The goal as an agent sees it; ``goal_id`` None: its events are not shown as a goal's."""
    assert goal.scope is not None
    return Asked(goal, goal_id, goal.scope, on_text)


def _run_tool(turn: Turn, tool: dict[str, Any], agent: Agent, asked: Asked) -> str:
    """A goal that is one tool call. The tool's own failure is the goal's, and so is its stop."""
    call = ToolCall("", tool["name"], json.dumps(tool["arguments"], ensure_ascii=False))
    batch = ToolBatch([call], agent.profile.tools, asked, turn)
    result = batch.run()[0]
    batch.check_stopped()
    if result.is_error:
        raise ToolFailed(result.content)
    return result.content
