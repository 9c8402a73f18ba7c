"""What the races of messages share: chats of one race each, things done at the same moment, and what must hold after."""

from __future__ import annotations

import itertools
import os
import random
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from sqlalchemy import select

from core.session.queries import read_plan
from core.session.run_state import OPEN
from core.session.said import turn_messages, with_earlier
from core.session.said_log import read_said, said_before
from core.store.tables import turns
from tests.support.api_client import PATIENCE_S, in_threads
from tests.support.chat_machine import make_template
from tests.support.chat_said import told_in
from tests.support.chat_session import ChatSession

#: How often a race is run: as often as fits in a quick run, and as often as it takes to trust it.
ROUNDS: Final = pytest.mark.parametrize(
    "rounds", [20, pytest.param(500, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])]
)
#: Seconds by which one comes later than the other, at most: what a turn needs for a step.
APART_S: Final = 0.003
SEED: Final = os.environ.get("RACE_SEED", "20261")


class Chats:
    """Makes chats, each with a store of its own; in memory where there is such a place."""

    def __init__(self, folder: Path) -> None:
        self._template = make_template(folder / "template")
        self._folders = (folder / str(number) for number in itertools.count(1))

    @contextmanager
    def chat(self, group: int = 500, **options: Any) -> Iterator[ChatSession]:
        """A chat; at the end, it goes on with a next message, and then nothing may be left of it."""
        chat = ChatSession(self._template, self._folders, group, **options)
        try:
            yield chat
            go_on(chat)
        finally:
            chat.end()

    def race(self, rounds: int, name: str, race: Callable[[ChatSession, random.Random], None]) -> None:
        """Run a race so often; each time, the gateway and the calls take a stop in one of their ways."""
        for number in range(rounds):
            rng = random.Random(f"{SEED}-{name}-{number}")
            asking = rng.choice([None, None, "agrees", "agrees", "agrees", "refuses", "refuses", "agrees and goes on"])
            with self.chat(rng.choice([1, 500]), asking=asking, manners=(rng.choice([0, 0, 1, 2]),)) as chat:
                race(chat, rng)


@contextmanager
def open_chats() -> Iterator[Chats]:
    """For a module."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        yield Chats(Path(folder))


def at_once(rng: random.Random, *actions: Callable[[], Any]) -> list[Any]:
    """All of them at the same moment, or a moment apart; what they return."""
    together = threading.Barrier(len(actions), timeout=PATIENCE_S)
    delays = [rng.choice([0.0, 0.0, rng.random() * APART_S]) for _ in actions]

    def act(index: int) -> Any:
        together.wait()
        time.sleep(delays[index])  # the offset that is tried
        return actions[index]()

    return in_threads(len(actions), act)


# -- what holds ------------------------------------------------------------------------------------


def row_of(chat: ChatSession, answer: dict[str, Any]) -> dict[str, Any]:
    """The row of a message, as it was after the last step."""
    assert chat.log is not None
    return next(row for row in chat.log.messages if row["id"] == answer["message_id"])


def fate(chat: ChatSession, answer: dict[str, Any]) -> tuple[str, int | None]:
    """Its state, and its place in the turn that has it."""
    row = row_of(chat, answer)
    return row["state"], row["position"]


def said_of(chat: ChatSession, turn: int = 0) -> list[tuple[str, str]]:
    """Role and content of the transcript of one turn."""
    assert chat.log is not None
    turn_id = chat.log.turns[turn]["id"]
    return [(each["role"], each["content"]) for each in chat.log.transcript if each["turn_id"] == turn_id]


def requests_of_turn(chat: ChatSession, turn: int = 0) -> list[list[tuple[str, str]]]:
    """Role and content of each message that a model was asked with in one turn, without the system's."""
    assert chat.log is not None
    turn_id = chat.log.turns[turn]["id"]
    return [
        [(each["role"], each["content"]) for each in request.messages if each["role"] != "system"]
        for asked_in, request in chat.requests if asked_in == turn_id
    ]  # fmt: skip


def go_on(chat: ChatSession) -> None:
    """Every call is answered, every turn ends, the next message works, and all that was said has come through."""
    chat.step(chat.answer_everything)
    if chat.state == "awaiting_input":
        chat.step(lambda: chat.say(chat.words(" next"), mode="queue"))
        chat.step(chat.answer_everything)
        assert chat.turn["state"] == "completed"
    assert chat.state not in OPEN
    check_fold(chat)
    check_heard(chat)
    check_texts(chat)


def check_fold(chat: ChatSession) -> None:
    """What each turn's end says was made of memory; the log of the turn gives the same."""
    assert chat.log is not None
    with chat.main.reading() as connection:
        for turn in connection.execute(select(turns)).mappings().all():
            end = chat.log.of_turn(dict(turn))[-1]["data"]
            logged, before = read_said(connection, turn, read_plan(connection, turn)["goals"]), said_before(connection, turn)
            folded = turn_messages(
                with_earlier(logged.said, before.said), turn["state"], end.get("cause"), before.told + logged.told
            )
            assert folded == end["messages"]


def check_heard(chat: ChatSession) -> None:
    """In a turn of one goal: what went in is in every request from one on, and in the last if the goal came to its end."""
    assert chat.log is not None
    for number, turn in enumerate(chat.log.turns):
        log = chat.log.of_turn(turn)
        asked = requests_of_turn(chat, number)
        if any(event["type"] == "plan_updated" and len(event["data"]["goals"]) > 1 for event in log):
            continue
        for message in told_in(log):
            has_it = [any(message["text"] in content.split("\n\n") for _, content in each) for each in asked]
            assert has_it == sorted(has_it), "it was forgotten again"
            assert turn["state"] != "completed" or has_it[-1:] == [True], "the model never had it"


def check_texts(chat: ChatSession) -> None:
    """What was delivered is in the transcript once, and what was not, nowhere."""
    assert chat.log is not None
    words = [line for each in chat.log.transcript if each["role"] == "user" for line in each["content"].split("\n\n")]
    for message in chat.log.messages:
        assert words.count(message["text"]) == (message["state"] == "delivered"), message
