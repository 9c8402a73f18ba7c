"""An interrupt while the store is slow: it is accepted once or not at all, and its turn is stopped in any case."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from core.engine import stopping
from core.errors import StopNotRecorded
from core.session import turn_stop
from tests.support.chat_session import ChatSession
from tests.support.message_race_kit import Chats, fate, open_chats
from tests.support.race_kit import Later, Switch
from tests.support.servers import gate


@pytest.fixture(scope="module")
def chats() -> Iterator[Chats]:
    with open_chats() as made:
        yield made


@pytest.fixture
def chat(chats: Chats, monkeypatch: pytest.MonkeyPatch) -> Iterator[ChatSession]:
    """Nobody waits long for the store here."""
    with chats.chat() as made:
        made.step(lambda: made.start("hello", planning="none"))
        monkeypatch.setattr(stopping, "STORE_TIMEOUT_S", 0.1)
        yield made


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Switch:
    """Writes the record of a stop only when the test lets it."""
    held, note = Switch(), turn_stop.note_stop

    def note_late(*arguments: Any) -> Any:
        held.hold()
        return note(*arguments)

    monkeypatch.setattr(turn_stop, "note_stop", note_late)
    return held


def _interrupt(chat: ChatSession, client_id: str | None = None) -> Any:
    return chat.say("rather this", client_id, mode="interrupt")


def _interrupt_in_vain(chat: ChatSession) -> None:
    with pytest.raises(StopNotRecorded) as raised:
        _interrupt(chat, "mine")
    assert raised.value.extra["stopped"] is True
    assert raised.value.extra["receipt"][0]["kind"] == "model_call"


def _inputs(chat: ChatSession) -> list[tuple[str, str]]:
    assert chat.log is not None
    return [(turn["input"], turn["state"]) for turn in chat.log.turns]


@pytest.mark.parametrize("joins", [False, True], ids=["alone", "joined"])
def test_an_interrupt_that_the_store_does_not_come_to_in_time_never_happens_and_its_stop_holds(
    chat: ChatSession, joins: bool
) -> None:
    held = Switch()

    def act() -> None:
        with gate("talking.accepted") as accepted, gate("turn.before_finish") as unwinding:
            interrupt = Later(lambda: _interrupt_in_vain(chat))
            accepted.wait_reached()
            chat.main.writer.transact(lambda _: held.hold())
            held.wait_reached()
            accepted.open()
            interrupt.result()
            unwinding.wait_reached()
            held.open()
            if joins:
                with pytest.raises(StopNotRecorded):
                    chat.stop("cancel")

    chat.step(act)
    assert _inputs(chat) == [("hello", "cancelled")]
    assert (chat.state, chat.log.messages) == ("awaiting_input", [])  # type: ignore[union-attr]
    assert chat.step(lambda: _interrupt(chat, "mine"))["disposition"] == "started"


def test_an_interrupt_that_is_being_written_when_nobody_waits_any_more_happens_once(
    chat: ChatSession, store: Switch, monkeypatch: pytest.MonkeyPatch
) -> None:
    accept: Callable[..., Any] = chat.main.engine.accept
    accepted: list[Any] = []

    def count(decision: Any) -> Any:
        accepted.append(decision)
        if len(accepted) > 1:
            store.open()  # whoever accepts it once more finds a store that works again
        return accept(decision)

    def act() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(chat.main.engine, "accept", count)
            _interrupt_in_vain(chat)
        store.open()

    chat.step(act)
    assert len(accepted) == 1
    assert _inputs(chat) == [("hello", "cancelled"), ("rather this", "open")]
    assert [message["state"] for message in chat.log.messages] == ["delivered"]  # type: ignore[union-attr]
    assert chat.step(lambda: _interrupt(chat, "mine"))["disposition"] == "duplicate"


def test_an_interrupt_that_is_written_late_is_answered_as_if_it_had_been_in_time(
    chat: ChatSession, store: Switch, monkeypatch: pytest.MonkeyPatch
) -> None:
    def go_on(cancel: Callable[[], bool]) -> bool:
        monkeypatch.setattr(stopping, "STORE_TIMEOUT_S", 15.0)
        store.open()
        return cancel()

    def act() -> Any:
        with gate("talking.stopped") as stopped:
            interrupt = Later(lambda: _interrupt(chat))
            stopped.wait_reached()
            store.wait_reached()
            recorded = chat.main.engine.live_turns()[0].stopping.recorded
            assert recorded is not None
            monkeypatch.setattr(recorded, "cancel", partial(go_on, recorded.cancel))
            stopped.open()
            return interrupt.result()

    said = chat.step(act)
    assert (said["disposition"], said["receipt"][0]["kind"]) == ("interrupted", "model_call")
    assert fate(chat, said) == ("delivered", 0)
    assert _inputs(chat) == [("hello", "cancelled"), ("rather this", "open")]
