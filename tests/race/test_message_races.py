"""Messages into a turn at work against what happens at the same moment: each has one fate, whoever is quicker."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from core import gates
from core.engine.stopping import StopAnswer
from core.errors import MessageIsSettled
from core.provider.failures import ServerRejected
from core.provider.provider import ToolCall
from core.tool.tool import ToolResult
from tests.support.api_client import PATIENCE_S
from tests.support.chat_session import ChatSession
from tests.support.core_kit import ALICE
from tests.support.message_race_kit import ROUNDS, Chats, at_once, fate, open_chats, requests_of_turn, row_of, said_of
from tests.support.scripted_provider import Answer

CALLS = Answer("let me see", (ToolCall("1", "alpha", '{"n": 1}'), ToolCall("2", "beta", "{}")))


@pytest.fixture(scope="module")
def chats() -> Iterator[Chats]:
    with open_chats() as made:
        yield made


def _start(chat: ChatSession, rng: random.Random) -> None:
    """A turn whose model is asked, and has perhaps begun to answer."""
    chat.step(lambda: chat.start(chat.words(""), planning="none"))
    for piece in rng.choice([(), ("part",), ("part", " and part"), (" ",)]):
        chat.step(lambda piece=piece: chat.gates[0].go(piece))


def _start_tools(chat: ChatSession, rng: random.Random) -> None:
    """A turn with two tools at work, or one of which has ended."""
    _start(chat, rng)
    chat.step(lambda: chat.gates[0].go(CALLS))
    if rng.random() < 0.5:
        chat.step(lambda: chat.gates[0].go(ToolResult("early")))


def _say(chat: ChatSession, mode: str) -> Any:
    return chat.say(chat.words(""), mode=mode)


def _turn_state(chat: ChatSession, number: int = 0) -> str:
    assert chat.log is not None
    return str(chat.log.turns[number]["state"])


# -- the end of an answer, and of a turn -------------------------------------------------------------


@ROUNDS
def test_a_redirect_and_the_end_of_the_answer(chats: Chats, rounds: int) -> None:
    def race(chat: ChatSession, rng: random.Random) -> None:
        _start(chat, rng)
        (gate,) = chat.gates
        _, said = chat.step(lambda: at_once(rng, lambda: gate.go(Answer("done")), lambda: _say(chat, "redirect")))
        chat.step(chat.answer_everything)
        assert fate(chat, said) == ("delivered", 1 if said["disposition"] == "redirected" else 0)
        assert len(requests_of_turn(chat)) == (2 if said["disposition"] == "redirected" else 1)
        assert _turn_state(chat) == "completed"

    chats.race(rounds, "redirect-completion", race)


@ROUNDS
def test_a_token_and_the_redirect_that_cuts_its_answer_off(chats: Chats, rounds: int) -> None:
    def race(chat: ChatSession, rng: random.Random) -> None:
        _start(chat, rng)
        (gate,) = chat.gates
        _, said = chat.step(lambda: at_once(rng, lambda: gate.go(" LAST"), lambda: _say(chat, "redirect")))
        assert (said["disposition"], fate(chat, said)) == ("redirected", ("delivered", 1))
        chat.step(lambda: chat.gates[0].go(Answer("anew")))
        assert said_of(chat)[-1] == ("assistant", "anew")

    chats.race(rounds, "redirect-token", race)


@ROUNDS
def test_a_steer_and_the_end_of_the_turn(chats: Chats, rounds: int) -> None:
    def race(chat: ChatSession, rng: random.Random) -> None:
        _start(chat, rng)
        (gate,) = chat.gates
        _, said = chat.step(lambda: at_once(rng, lambda: gate.go(Answer("done")), lambda: _say(chat, "steer")))
        assert fate(chat, said) == ("delivered", 0)
        assert [_turn_state(chat), row_of(chat, said)["turn_id"]] == ["completed", chat.turn["id"]]

    chats.race(rounds, "steer-completion", race)


@ROUNDS
def test_an_interrupt_and_the_end_of_the_answer(chats: Chats, rounds: int) -> None:
    def race(chat: ChatSession, rng: random.Random) -> None:
        _start(chat, rng)
        (gate,) = chat.gates
        _, said = chat.step(lambda: at_once(rng, lambda: gate.go(Answer("done")), lambda: _say(chat, "interrupt")))
        assert _turn_state(chat) == ("cancelled" if said["disposition"] == "interrupted" else "completed")
        assert (fate(chat, said), row_of(chat, said)["turn_id"]) == (("delivered", 0), chat.turn["id"])

    chats.race(rounds, "interrupt-completion", race)


@ROUNDS
@pytest.mark.parametrize("mode", ["steer", "redirect"])
def test_a_message_and_the_end_of_the_tools(chats: Chats, rounds: int, mode: str) -> None:
    def race(chat: ChatSession, rng: random.Random) -> None:
        _start_tools(chat, rng)
        ends = [lambda gate=gate: gate.go(ToolResult("late")) for gate in chat.gates]
        *_, said = chat.step(lambda: at_once(rng, *ends, lambda: _say(chat, mode)))
        chat.step(chat.answer_everything)
        in_time = mode == "redirect" or fate(chat, said) == ("delivered", 1)
        assert fate(chat, said) == ("delivered", 1 if in_time else 0)
        asked = requests_of_turn(chat)
        assert [role for role, _ in asked[-1]][-1] == ("user" if in_time else "tool")

    chats.race(rounds, f"{mode}-tools", race)


# -- stops ---------------------------------------------------------------------------------------------


@ROUNDS
@pytest.mark.parametrize("mode", ["steer", "redirect", "interrupt"])
def test_a_message_and_a_stop(chats: Chats, rounds: int, mode: str) -> None:
    def race(chat: ChatSession, rng: random.Random) -> None:
        (_start_tools if rng.random() < 0.3 else _start)(chat, rng)
        inbox = rng.choice(["keep", "return", "drop"])
        stopped, said = chat.step(lambda: at_once(rng, lambda: _stop(chat, inbox), lambda: _say(chat, mode)))
        _check_stopped(chat, said, stopped, {"keep": "held", "return": "returned", "drop": "withdrawn"}[inbox], mode)

    chats.race(rounds, f"{mode}-stop", race)


def _stop(chat: ChatSession, inbox: str) -> Any:
    return chat.stop("cancel", inbox)


def _check_stopped(chat: ChatSession, said: Any, stopped: Any, unheard: str, mode: str) -> None:
    """The stop has won, and the message was in before, has met it as its order says, or starts the next turn."""
    assert _turn_state(chat) == "cancelled"
    assert stopped.stopped or said["disposition"] == "interrupted"
    state, position = fate(chat, said)
    if mode == "interrupt" or said["disposition"] in ("queued", "started"):
        assert (state, position) == ("delivered", 0) or (state, mode) == (unheard, "interrupt")
    else:
        assert (state, position) in (("delivered", 1), (unheard, None))
    asked = requests_of_turn(chat)
    assert len(asked) <= (2 if position == 1 else 1)


@ROUNDS
def test_a_redirect_and_the_end_of_the_run(chats: Chats, rounds: int) -> None:
    def race(chat: ChatSession, rng: random.Random) -> None:
        _start(chat, rng)
        stopped, said = chat.step(lambda: at_once(rng, lambda: chat.stop("terminate"), lambda: _say(chat, "redirect")))
        assert isinstance(stopped, StopAnswer) and stopped.stopped
        assert (_turn_state(chat), chat.state) == ("cancelled", "cancelled")
        if isinstance(said, dict):  # else it was too late to be accepted
            assert fate(chat, said) in (("delivered", 1), ("returned", None))

    chats.race(rounds, "redirect-terminate", race)


@ROUNDS
def test_a_redirect_and_the_stop_of_its_goal(chats: Chats, rounds: int) -> None:
    def race(chat: ChatSession, rng: random.Random) -> None:
        _start(chat, rng)
        stopped, said = chat.step(lambda: at_once(rng, lambda: chat.stop_part("goal", 0), lambda: _say(chat, "redirect")))
        assert stopped["stopped"] is True
        assert fate(chat, said)[0] == "delivered"
        assert len(requests_of_turn(chat)) <= (2 if fate(chat, said)[1] else 1)
        assert _turn_state(chat) == "failed"

    chats.race(rounds, "redirect-goal", race)


# -- other messages ----------------------------------------------------------------------------------------


@ROUNDS
@pytest.mark.parametrize("modes", [("redirect", "redirect"), ("redirect", "steer"), ("redirect", "interrupt")])
def test_two_messages_at_once(chats: Chats, rounds: int, modes: tuple[str, str]) -> None:
    def race(chat: ChatSession, rng: random.Random) -> None:
        _start(chat, rng)
        both = chat.step(lambda: at_once(rng, *(lambda mode=mode: _say(chat, mode) for mode in modes)))
        chat.step(chat.answer_everything)
        assert {fate(chat, said)[0] for said in both} == {"delivered"}
        if "interrupt" in modes:
            assert _turn_state(chat) == "cancelled"
            return
        if fate(chat, both[1]) != ("delivered", 0):  # a steer may come too late for the only request that is left
            assert sorted(fate(chat, said) for said in both) == [("delivered", 1), ("delivered", 2)]
        assert fate(chat, both[0])[1] in (1, 2)
        assert len(requests_of_turn(chat)) in (2, 3)

    chats.race(rounds, "-".join(modes), race)


@ROUNDS
@pytest.mark.parametrize("mode", ["steer", "redirect"])
def test_a_message_and_its_withdrawal(chats: Chats, rounds: int, mode: str) -> None:
    def race(chat: ChatSession, rng: random.Random) -> None:
        if mode == "redirect":
            _start(chat, rng)
            said, withdrawn = chat.step(lambda: _withdraw_at_once(chat, rng))
        else:
            _start_tools(chat, rng)
            said = chat.step(lambda: _say(chat, mode))
            ends = [lambda gate=gate: gate.go(ToolResult("done")) for gate in chat.gates]
            *_, withdrawn = chat.step(
                lambda: at_once(rng, *ends, lambda: chat.change_inbox(said["message_id"], None))
            )
        chat.step(chat.answer_everything)
        assert isinstance(withdrawn, dict | MessageIsSettled | None)
        assert fate(chat, said) == (("withdrawn", None) if isinstance(withdrawn, dict) else ("delivered", 1))
        assert _turn_state(chat) == "completed"

    chats.race(rounds, f"{mode}-withdrawal", race)


def _withdraw_at_once(chat: ChatSession, rng: random.Random) -> list[Any]:
    """A redirect, and its withdrawal from the moment on at which it is recorded."""
    recorded = threading.Event()
    gates.installed["talking.accepted"] = recorded.set

    def withdraw() -> Any:
        assert recorded.wait(PATIENCE_S)
        waiting = chat.main.talk.get_inbox(ALICE, chat.run_id)["messages"]
        return chat.change_inbox(waiting[0]["message_id"], None) if waiting else None

    try:
        return at_once(rng, lambda: _say(chat, "redirect"), withdraw)
    finally:
        del gates.installed["talking.accepted"]


@ROUNDS
def test_a_redirect_and_the_next_attempt_after_a_failure(chats: Chats, rounds: int) -> None:
    def race(chat: ChatSession, rng: random.Random) -> None:
        chat.step(lambda: chat.start(chat.words(""), planning="none"))
        (gate,) = chat.gates
        busy = ServerRejected("too busy", 429, is_retryable=True)
        _, said = chat.step(lambda: at_once(rng, lambda: gate.go(busy), lambda: _say(chat, "redirect")))
        chat.step(chat.answer_everything)
        assert fate(chat, said) == ("delivered", 1)
        assert _turn_state(chat) == "completed"

    chats.race(rounds, "redirect-retry", race)
