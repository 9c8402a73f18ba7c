"""Messages into a turn at work, each order forced: taken and not yet durable, cut off while it is being asked, refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from core.errors import QueueFull, StoreError, TurnIsOver
from core.provider.provider import ToolCall
from core.tool.tool import ToolResult
from tests.support.api_client import PATIENCE_S
from tests.support.chat_session import ChatSession
from tests.support.message_race_kit import Chats, fate, open_chats, requests_of_turn, row_of, said_of
from tests.support.race_kit import Later, Switch
from tests.support.scripted_provider import Answer
from tests.support.servers import gate

CALL = Answer("let me see", (ToolCall("1", "alpha", '{"n": 1}'),))
STOPPED = "[stopped by the user before any text]"


@pytest.fixture(scope="module")
def chats() -> Iterator[Chats]:
    with open_chats() as made:
        yield made


@pytest.fixture
def chat(chats: Chats) -> Iterator[ChatSession]:
    with chats.chat() as made:
        yield made


def _say(chat: ChatSession, mode: str, text: str = "rather this", if_turn: str | None = None) -> Any:
    return chat.say(text, mode=mode, if_turn=if_turn)


def _steer_during_tool(chat: ChatSession) -> Any:
    """A turn whose tool is at work, and a steer that waits for its end."""
    chat.step(lambda: chat.start("hello", planning="none"))
    chat.step(lambda: chat.gates[0].go(CALL))
    return chat.step(lambda: _say(chat, "steer"))


def _at(chat: ChatSession, point: str, first: Callable[[], Any], then: Callable[[], Any]) -> Any:
    """In one step: what makes the goal come to the point, and what happens while it stands there; the answer of that."""
    def act() -> Any:
        with gate(point) as held:
            first()
            held.wait_reached()
            answer = then()
            held.open()
        return answer

    return chat.step(act)


# -- a stop --------------------------------------------------------------------------------------------


def _end_tool(chat: ChatSession) -> Callable[[], None]:
    return lambda: chat.gates[0].go(ToolResult("done"))


def test_a_stop_after_a_steer_was_taken_finds_it_in_the_transcript(chat: ChatSession) -> None:
    said = _steer_during_tool(chat)
    stopped = _at(chat, "mail.before_confirmation", _end_tool(chat), lambda: chat.stop("cancel"))
    assert stopped.stopped
    assert fate(chat, said) == ("delivered", 1)
    assert [content for _, content in said_of(chat)[-2:]] == ["rather this", STOPPED]
    assert len(requests_of_turn(chat)) == 1


@pytest.mark.parametrize(("inbox", "state"), [("keep", "held"), ("return", "returned"), ("drop", "withdrawn")])
def test_a_stop_just_before_a_steer_is_taken_does_with_it_what_its_order_says(
    chat: ChatSession, inbox: str, state: str
) -> None:
    said = _steer_during_tool(chat)
    _at(chat, "mail.before_delivery", _end_tool(chat), lambda: chat.stop("cancel", inbox))
    assert fate(chat, said) == (state, None)
    assert len(requests_of_turn(chat)) == 1
    assert [role for role, _ in said_of(chat)] == ["user", "assistant", "tool"]


@pytest.mark.parametrize("point", ["mail.before_delivery", "mail.before_confirmation", "mail.confirmed"])
def test_a_server_that_is_killed_while_a_steer_is_taken_has_it_in_the_turn_or_keeps_it(
    chat: ChatSession, point: str
) -> None:
    said = _steer_during_tool(chat)
    _at(chat, point, _end_tool(chat), chat.kill)
    is_in = fate(chat, said) == ("delivered", 1)
    assert is_in or (point != "mail.confirmed" and fate(chat, said) == ("held", None))
    assert (("user", "rather this") in said_of(chat)) is is_in


@pytest.mark.parametrize("point", ["mail.before_delivery", "mail.before_confirmation", "model_call.before_sent"])
def test_a_stop_wins_over_a_redirect_that_has_cut_the_answer_off(chat: ChatSession, point: str) -> None:
    chat.step(lambda: chat.start("hello", planning="none"))
    chat.step(lambda: chat.gates[0].go("half"))
    answers: list[Any] = []
    stopped = _at(chat, point, lambda: answers.append(_say(chat, "redirect")), lambda: chat.stop("cancel"))
    assert stopped.stopped and answers[0]["disposition"] == "redirected"
    is_in = point != "mail.before_delivery"
    assert fate(chat, answers[0]) == (("delivered", 1) if is_in else ("held", None))
    met = [("user", "rather this"), ("assistant", STOPPED)]
    assert said_of(chat)[1:] == [("assistant", "half"), *(met if is_in else ())]
    assert len(requests_of_turn(chat)) == 1


# -- the request itself ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "point", ["agent.before_request", "mail.before_delivery", "mail.before_confirmation", "mail.confirmed",
              "model_call.before_sent"],
)  # fmt: skip
def test_a_redirect_that_comes_while_a_request_is_being_made_is_in_the_first_one_that_leaves(
    chat: ChatSession, point: str
) -> None:
    _steer_during_tool(chat)
    said = _at(chat, point, _end_tool(chat), lambda: _say(chat, "redirect", "no, this"))
    is_late = point not in ("agent.before_request", "mail.before_delivery")
    assert said["disposition"] == ("redirected" if is_late else "steered")
    assert fate(chat, said) == ("delivered", 2)
    _, asked = requests_of_turn(chat)
    assert asked[-1] == ("user", "rather this\n\nno, this")


def test_nothing_that_a_cut_request_says_late_follows_the_correction(chats: Chats) -> None:
    with chats.chat(asking="agrees and goes on", manners=(1,)) as chat:  # its calls say LATE once they are stopped
        chat.step(lambda: chat.start("hello", planning="none"))
        chat.step(lambda: chat.gates[0].go("half"))
        chat.step(lambda: _say(chat, "redirect"))
        chat.step(lambda: chat.gates[0].go(Answer("anew")))
        assert said_of(chat)[1:] == [("assistant", "half"), ("user", "rather this"), ("assistant", "anew")]


def test_a_redirect_that_is_withdrawn_when_it_has_cut_leaves_a_request_that_every_server_takes(
    chat: ChatSession,
) -> None:
    chat.step(lambda: chat.start("hello", planning="none"))
    chat.step(lambda: chat.gates[0].go("half"))
    said: list[Any] = []
    _at(
        chat, "mail.before_delivery", lambda: said.append(_say(chat, "redirect")),
        lambda: chat.change_inbox(said[0]["message_id"], None),
    )  # fmt: skip
    assert fate(chat, said[0]) == ("withdrawn", None)
    assert requests_of_turn(chat)[-1] == [("user", "hello")]
    chat.step(lambda: chat.gates[0].go(Answer("anew")))
    assert chat.turn["state"] == "completed"


def test_an_answer_that_ends_before_a_redirect_can_cut_it_off_stands_and_the_message_starts_the_next_turn(
    chat: ChatSession,
) -> None:
    chat.step(lambda: chat.start("hello", planning="none"))

    def act() -> Any:
        with gate("mail.before_cut") as cutting:
            redirect = Later(lambda: _say(chat, "redirect"))
            cutting.wait_reached()
            chat.gates[0].go(Answer("done"))
            chat.server.stage.wait_still()
            cutting.open()
            return redirect.result()

    said = chat.step(act)
    assert (said["disposition"], fate(chat, said)) == ("steered", ("delivered", 0))
    assert said_of(chat) == [("user", "hello"), ("assistant", "done")]


# -- the store -----------------------------------------------------------------------------------------------


def _refuse_deliveries(chat: ChatSession, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """The store does not take the next deliveries, and all else."""
    transact, left = chat.main.writer.transact, [count]

    def refuse(_: Any) -> Any:
        raise StoreError

    def choosy(decide: Any) -> Any:
        is_delivery = "deliver" in decide.__code__.co_names and left[0] > 0
        left[0] -= is_delivery
        return transact(refuse if is_delivery else decide)

    monkeypatch.setattr(chat.main.writer, "transact", choosy)


def test_messages_that_the_store_did_not_take_wait_and_go_in_later_in_their_order(
    chat: ChatSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = _steer_during_tool(chat)
    second = chat.step(lambda: _say(chat, "steer", "and that"))
    _refuse_deliveries(chat, monkeypatch, 2)
    chat.step(_end_tool(chat))
    assert [fate(chat, said)[0] for said in (first, second)] == ["queued", "queued"]
    assert requests_of_turn(chat)[-1][-1] == ("tool", "done")
    chat.step(lambda: chat.gates[0].go(CALL))
    chat.step(_end_tool(chat))
    assert [fate(chat, said) for said in (first, second)] == [("delivered", 1), ("delivered", 2)]
    assert requests_of_turn(chat)[-1][-1] == ("user", "rather this\n\nand that")


def test_a_message_that_the_store_did_not_take_before_the_turns_end_starts_the_next(
    chat: ChatSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = _steer_during_tool(chat)
    _refuse_deliveries(chat, monkeypatch, 1)
    chat.step(_end_tool(chat))
    chat.step(lambda: chat.gates[0].go(Answer("done")))
    assert fate(chat, said) == ("delivered", 0)
    assert row_of(chat, said)["turn_id"] == chat.turn["id"]


# -- an interrupt --------------------------------------------------------------------------------------------------


def _interrupt_at(
    chat: ChatSession, point: str, meanwhile: Callable[[], Any], if_turn: str | None = None
) -> Any:  # fmt: skip
    def act() -> Any:
        with gate(point) as held:
            interrupt = Later(lambda: _say(chat, "interrupt", if_turn=if_turn))
            held.wait_reached()
            meanwhile()
            held.open()
            return interrupt.result()

    return chat.step(act)


def test_an_interrupt_whose_turn_ends_by_itself_meanwhile_starts_the_next_turn_and_stops_none(
    chat: ChatSession,
) -> None:
    chat.step(lambda: chat.start("hello", planning="none"))

    def answer() -> None:
        chat.gates[0].go(Answer("done"))
        chat.server.stage.wait_still()

    said = _interrupt_at(chat, "talking.accepted", answer)
    assert said["disposition"] == "started"
    assert said_of(chat) == [("user", "hello"), ("assistant", "done")]
    assert fate(chat, said) == ("delivered", 0)


@pytest.mark.parametrize("has_ended", [False, True])
def test_an_interrupt_is_recorded_with_its_stop_and_goes_before_what_waits_and_what_comes_since(
    chat: ChatSession, has_ended: bool
) -> None:
    chat.step(lambda: chat.start("hello", planning="none"))
    waits = chat.step(lambda: chat.say("waits", mode="queue"))

    def act() -> Any:
        with gate("turn.before_finish") as unwinding, gate("talking.stopped") as stopped:
            interrupt = Later(lambda: _say(chat, "interrupt"))
            stopped.wait_reached()
            unwinding.wait_reached()
            if has_ended:
                unwinding.open()
                chat.server.stage.wait_still()
            since.append(chat.say("since", mode="queue"))
            stopped.open()
            return interrupt.result()

    since: list[Any] = []
    said = chat.step(act)
    assert since[0]["disposition"] == "queued"
    assert (said["disposition"], said["receipt"][0]["kind"]) == ("interrupted", "model_call")
    assert fate(chat, said) == ("delivered", 0)
    assert fate(chat, waits)[0] == "queued"
    chat.step(chat.answer_everything)
    assert [turn["input"] for turn in chat.log.turns] == ["hello", "rather this", "waits", "since"]  # type: ignore[union-attr]


def test_an_interrupt_that_finds_no_room_is_refused_and_stops_nothing(
    chat: ChatSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("core.session.inbox.MAX_WAITING", 1)
    chat.step(lambda: chat.start("hello", planning="none"))
    chat.step(lambda: chat.say("waits", mode="queue"))
    with pytest.raises(QueueFull):
        _say(chat, "interrupt")
    chat.step(lambda: None)
    assert chat.turn["state"] == "open"


def test_an_interrupt_that_finds_no_room_any_more_when_it_is_recorded_stops_the_turn_and_starts_the_next_all_the_same(
    chat: ChatSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("core.session.inbox.MAX_WAITING", 1)
    chat.step(lambda: chat.start("hello", planning="none"))
    said = _interrupt_at(chat, "talking.accepted", lambda: chat.say("quicker", mode="queue"))
    assert (said["disposition"], fate(chat, said)) == ("interrupted", ("delivered", 0))
    chat.step(chat.answer_everything)
    assert [turn["input"] for turn in chat.log.turns] == ["hello", "rather this", "quicker"]  # type: ignore[union-attr]


def test_an_interrupt_for_one_turn_that_ends_by_itself_meanwhile_starts_no_other(chat: ChatSession) -> None:
    chat.step(lambda: chat.start("hello", planning="none"))

    def answer() -> None:
        chat.gates[0].go(Answer("done"))
        chat.server.stage.wait_still()

    said = _interrupt_at(chat, "talking.accepted", answer, if_turn=chat.turn["id"])
    assert isinstance(said, TurnIsOver)
    assert [turn["state"] for turn in chat.log.turns] == ["completed"]  # type: ignore[union-attr]
    assert chat.log.messages == []  # type: ignore[union-attr]


def test_an_interrupt_whose_stop_is_recorded_behind_the_end_of_its_turn_starts_the_next_one(
    chat: ChatSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat.step(lambda: chat.start("hello", planning="none"))
    (turn,) = chat.main.engine.live_turns()
    recording, record = Switch(), turn.record

    def record_late(decision: Any) -> Any:
        recording.hold()
        return record(decision)

    def act() -> Any:
        with monkeypatch.context() as patch:
            patch.setattr(turn, "record", record_late)
            interrupt = Later(lambda: _say(chat, "interrupt"))
            recording.wait_reached()
            chat.gates[0].go(Answer("done"))
            turn.ended.result(PATIENCE_S)
            recording.open()
            return interrupt.result()

    said = chat.step(act)
    assert (said["disposition"], fate(chat, said)) == ("started", ("delivered", 0))
    assert [turn["state"] for turn in chat.log.turns] == ["cancelled", "open"]  # type: ignore[union-attr]


def test_what_a_turn_says_while_an_interrupt_is_on_its_way_is_before_its_stop(chat: ChatSession) -> None:
    chat.step(lambda: chat.start("hello", planning="none"))

    def answer() -> None:
        chat.gates[0].go("half")
        chat.server.stage.wait_still()

    _interrupt_at(chat, "talking.accepted", answer)
    assert said_of(chat)[1] == ("assistant", "half")


# -- a plan that is not made yet ---------------------------------------------------------------------------------------


def test_what_was_told_while_a_resumed_turn_makes_its_plan_is_not_lost_when_that_is_stopped_too(
    chat: ChatSession,
) -> None:
    chat.step(lambda: chat.start("hello"))
    chat.step(lambda: chat.stop("cancel"))
    chat.step(lambda: chat.go_back("resume"))
    said = chat.step(lambda: _say(chat, "redirect"))
    assert fate(chat, said) == ("delivered", 1)
    chat.step(lambda: chat.stop("cancel"))
    assert ("user", "rather this") in said_of(chat, 1)
