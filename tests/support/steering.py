"""What the tests of messages to a turn at work share: a server that can be held, and turns that are at work."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.api_client import Api, Run
from tests.support.delegating import ENDLESS
from tests.support.message_matrix import hold_answers
from tests.support.model_server import ModelServer, ServedCall, script
from tests.support.own_tools import Stage, stages
from tests.support.plans import all_events
from tests.support.questions import calls_line
from tests.support.race_kit import check_nothing_left
from tests.support.servers import LocalServer

#: What stands for an assistant that a redirect found silent, and that a steer found without an answer.
CUT_SILENT, NOT_ANSWERED = "[stopped: redirect before any text]", "[not answered yet]"


@contextmanager
def talking_server(folder: Path, llm_url: str, **settings: Any) -> Iterator[LocalServer]:
    """A server whose answers and tools a test may hold."""
    tools = {"tools_allowed": ("ask_user", "delegate", "until_told"), "tool_modules": ("tests.support.own_tools",)}
    with LocalServer(folder, llm_url, **tools, **settings) as server:
        hold_answers(server)
        yield server


def check_quiet(server: LocalServer) -> None:
    """Let everything go that a test may have held; then nothing may be left."""
    for stage in stages.values():
        stage.go.set()
    stages.clear()
    check_nothing_left(server)


def endless(key: str, word: str = "work") -> str:
    """A message that is answered for longer than any test."""
    return f"{word}\n{script('trickle', key=key, **ENDLESS)}"


def brief(key: str, word: str) -> str:
    """A message that is answered at once, if the request is in order."""
    return f"{word}\n{script('strict', key=key)}"


def start_endless(api: Api, key: str, **fields: Any) -> Run:
    """A run whose answer is being given."""
    run = api.start(endless(key), **fields)
    run.wait_event("text", text="t2 ")
    return run


def tool_line(key: str, stage: str, word: str = "work") -> str:
    """A message to which the model calls a tool that waits at that stage, and then says ``t1 t2``."""
    return f"{word}\n{calls_line(key, ('until_told', {'stage': stage}))}"


def start_tool(api: Api, key: str, **fields: Any) -> tuple[Run, Stage]:
    """A run whose tool is at work, and where it waits to go on."""
    run, at = api.start(tool_line(key, key), **fields), stages[key]
    at.wait_begun()
    return run, at


def said_in(call: ServedCall) -> list[str]:
    """What a request says, but for the system's words and the results of tools: one text a message."""
    return [str(each["content"] or "") for each in call.messages if each["role"] not in ("system", "tool")]


def asked_by(models: ModelServer, key: str, word: str) -> list[ServedCall]:
    """The requests whose last user message begins with the word."""
    return [call for call in models.calls(key=key) if call.last_user_text.startswith(word)]


def wait_text_after(run: Run, message_id: str) -> None:
    """Until the answer to a message that went in is being given."""
    delivered = run.wait_event("message_delivered", message_id=message_id)
    run.wait_event("text", after=delivered["seq"])


def delivered_in(run: Run) -> list[tuple[str, int]]:
    """Id and position of each delivered message, in order."""
    events = [event for event in all_events(run) if event["type"] == "message_delivered"]
    return [(event["message_id"], event["position"]) for event in events]
