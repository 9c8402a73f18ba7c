"""Talking to a turn at work on the chat page: what a message means, where it waits, and where it stands afterwards."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, Route, expect

from tests.browser.chat_log import STARTED, TURN, show_log
from tests.browser.chat_page import (
    COUNTING,
    FOUR_GOALS,
    SHORT,
    chips,
    expect_ended,
    expect_working,
    last_turn,
    message_box,
    run_in,
    say,
    send,
    shell_script,
    start_counting,
    stop_button,
    tool_cards,
    waiting,
)
from tests.browser.conftest import ChatServer

pytestmark = pytest.mark.browser

CORRECTION = f"Fewer, please\n{SHORT}"


def parts(page: Page) -> Locator:
    """What the newest turn's only goal said, did and was told, in order."""
    return last_turn(page).locator(".parts > *")


def press(page: Page, text: str, name: str) -> None:
    """Press a button of the message that waits with this text, as the keyboard would."""
    waiting(page).filter(has_text=text).get_by_role("button", name=name).press("Enter")


def texts(page: Page) -> Locator:
    return waiting(page).locator(".bubble")


# -- into the turn -----------------------------------------------------------------------------------


def test_a_correction_stands_between_what_it_cut_off_and_the_rest_also_after_a_reload(page: Page) -> None:
    start_counting(page)

    say(page, "Correct it", CORRECTION)

    for _ in range(2):
        expect(last_turn(page)).to_have_attribute("data-state", "completed")
        expect(page.locator(".turn")).to_have_count(1)
        expect(parts(page)).to_have_count(3)
        expect(parts(page).nth(0)).to_contain_text("t1 t2 t3")
        expect(parts(page).nth(1).locator(".cut")).to_have_text("interrupted by your correction")
        expect(parts(page).nth(1).locator(".bubble")).to_have_text(CORRECTION)
        expect(parts(page).nth(2)).to_have_text("t1 t2 t3")
        expect(chips(page)).to_have_count(0)
        expect(waiting(page)).to_have_count(0)
        expect_ended(page)
        page.reload()


def test_an_addition_waits_for_the_tools_and_then_stands_behind_them(page: Page, key: str, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    send(page, shell_script(key, f"until [ -e {shlex.quote(str(gate))} ]; do sleep 0.05; done"))
    expect(tool_cards(page).locator(".state-word")).to_have_text("running")

    say(page, "Add to it", f"And this\n{SHORT}")

    for _ in range(2):
        expect(waiting(page)).to_have_count(1)
        expect(waiting(page)).to_contain_text("Add to it")
        expect(waiting(page)).to_contain_text("the model's next step")
        expect(last_turn(page).locator(".told")).to_have_count(0)
        page.reload()
    gate.touch()
    for _ in range(2):
        expect(last_turn(page)).to_have_attribute("data-state", "completed")
        expect(parts(page)).to_have_count(3)
        expect(parts(page).nth(0)).to_have_attribute("data-state", "done")
        expect(parts(page).nth(1).locator(".bubble")).to_have_text(f"And this\n{SHORT}")
        expect(parts(page).nth(1).locator(".cut")).to_have_count(0)
        expect(parts(page).nth(2)).to_have_text("t1 t2 t3")
        expect(waiting(page)).to_have_count(0)
        page.reload()


def test_a_correction_stands_in_every_goal_that_was_at_work(page: Page) -> None:
    send(page, FOUR_GOALS)
    expect(last_turn(page).locator(".goal .text")).to_have_count(3)

    say(page, "Correct it", "Only the speed, please")

    told = last_turn(page).locator(".goal .told")
    for _ in range(2):
        expect(told.locator(".bubble")).to_have_text(["Only the speed, please"] * 3)
        expect(told.locator(".cut")).to_have_count(3)
        expect(last_turn(page).locator(".told")).to_have_count(3)
        page.reload()
    stop_button(page).click()
    expect(chips(page)).to_have_text("stopped by you")
    expect(told).to_have_count(3)


def test_an_addition_that_came_while_a_model_talked_stands_where_it_asks_again(page: Page, server: ChatServer) -> None:
    about = {"turn_id": TURN, "goal_id": "g"}
    call = {**about, "call_id": "c"}
    told = {"message_id": "m", "text": "and this", "mode": "steer", "position": 1}
    events = [
        {"type": "text", **about, "text": "one "},
        # Another goal asked its model: this one is told, too, and finishes its round without it.
        {"type": "message_delivered", "turn_id": TURN, **told, "goals": [{"goal_id": "g", "round": 1}]},
        {"type": "text", **about, "text": "two"},
        {"type": "tool_call", **call, "name": "look", "arguments": "{}"},
        {"type": "tool_result", **call, "content": "found", "is_error": False},
        {"type": "text", **about, "text": "three"},
        {"type": "goal_status", **about, "status": "COMPLETED", "result": "three"},
        {"type": "turn_completed", "turn_id": TURN, "messages": []},
        {"type": "run_completed"},
    ]

    show_log(page, server, [*STARTED, *events])

    expect(parts(page)).to_have_count(4)
    expect(parts(page).nth(0)).to_have_text("one two")
    expect(parts(page).nth(1).locator(".tool-name")).to_have_text("look")
    expect(parts(page).nth(2).locator(".bubble")).to_have_text("and this")
    expect(parts(page).nth(2).locator(".cut")).to_have_count(0)
    expect(parts(page).nth(3)).to_have_text("three")


def test_what_was_said_before_there_were_goals_stands_behind_the_message(page: Page, server: ChatServer) -> None:
    told = {"message_id": "m", "text": "No, plan it again", "mode": "redirect", "position": 1, "goals": []}
    events = [*STARTED[:2], {"type": "message_delivered", "turn_id": TURN, **told}, *STARTED[2:]]

    show_log(
        page, server, [*events, {"type": "turn_completed", "turn_id": TURN, "messages": []}, {"type": "run_completed"}]
    )

    expect(last_turn(page).locator(".bubble")).to_have_text(["Look it up", "No, plan it again"])
    expect(last_turn(page).locator(".told-list .told")).to_have_count(1)
    expect(last_turn(page).locator(".cut")).to_have_count(0)


# -- instead of it -----------------------------------------------------------------------------------


def test_a_message_instead_stops_the_turn_and_goes_before_what_waits(page: Page) -> None:
    start_counting(page)
    say(page, "After this", f"later\n{SHORT}")
    expect(waiting(page)).to_have_count(1)

    page.get_by_role("radio", name="Instead").check()
    expect(page.get_by_role("button", name="Stop and send")).to_be_visible()
    send(page, SHORT)

    for _ in range(2):
        expect(page.locator(".turn")).to_have_count(3)
        expect(last_turn(page)).to_have_attribute("data-state", "completed")
        expect(page.locator(".turn .bubble")).to_have_text([COUNTING, SHORT, f"later\n{SHORT}"])
        expect(chips(page)).to_have_text("stopped by you")
        expect(page.locator(".turn").first.locator(".stopped")).to_contain_text("Your next message took its place.")
        expect(waiting(page)).to_have_count(0)
        page.reload()


def test_a_message_for_a_turn_that_is_over_by_then_waits_and_does_not_stop_the_next_one(
    page: Page, server: ChatServer
) -> None:
    start_counting(page)
    held: list[Route] = []
    sent: list[dict[str, Any]] = []

    def hold_the_first(route: Route) -> None:
        sent.append(json.loads(route.request.post_data or ""))
        if len(sent) == 1:
            held.append(route)
        else:
            route.continue_()

    page.route("**/input", hold_the_first)
    with page.expect_request("**/input"):
        say(page, "Instead", "for the first one")
    expect(waiting(page)).to_contain_text("sending")
    stop_button(page).click()
    expect(chips(page)).to_have_count(1)
    server.ask("POST", f"v1/runs/{run_in(page)}/input", {"text": COUNTING})
    expect(last_turn(page).locator(".text")).to_contain_text("t3")

    held[0].continue_()

    expect(waiting(page)).to_contain_text("it is sent when this turn is over")
    expect(waiting(page)).to_contain_text("for the first one")
    assert [body["mode"] for body in sent] == ["interrupt", "queue"]
    assert sent[0]["client_message_id"] == sent[1]["client_message_id"]
    expect_working(page)
    expect(chips(page)).to_have_count(1)
    stop_button(page).click()
    expect(chips(page)).to_have_count(2)


# -- what waits --------------------------------------------------------------------------------------


def test_messages_that_wait_are_moved_and_taken_back_and_nothing_typed_is_lost(page: Page) -> None:
    start_counting(page)
    for text in ("one", "two", "three"):
        say(page, "After this", text)
        expect(texts(page).filter(has_text=text)).to_have_count(1)

    press(page, "three", "Move up")

    for _ in range(2):
        expect(texts(page)).to_have_text(["one", "three", "two"])
        expect(waiting(page).first.get_by_role("button")).to_have_text("Take back")
        page.reload()

    press(page, "three", "Take back")
    expect(message_box(page)).to_have_value("three")
    expect(texts(page)).to_have_text(["one", "two"])
    press(page, "two", "Take back")  # the box is not empty
    for _ in range(2):
        expect(texts(page)).to_have_text(["two", "one"])
        expect(waiting(page).first).to_contain_text("taken back")
        expect(message_box(page)).to_have_value("three")
        page.reload()
    press(page, "two", "Write it again")
    for _ in range(2):
        expect(texts(page)).to_have_text(["one"])
        expect(message_box(page)).to_have_value("three\ntwo")
        page.reload()
    stop_button(page).click()
    expect(chips(page)).to_have_count(1)


def test_a_stop_tells_what_became_of_the_messages_that_waited(page: Page) -> None:
    start_counting(page)
    say(page, "After this", SHORT)
    say(page, "Add to it", "and this")
    expect(waiting(page)).to_have_count(2)

    stop_button(page).click()

    for _ in range(2):
        expect(last_turn(page).locator(".inbox-fate")).to_have_text("2 waiting messages were kept.")
        expect(waiting(page)).to_have_count(2)
        expect(waiting(page).first).to_contain_text("held since the stop: it goes before your next message")
        expect(page.get_by_role("radio", name="After this")).to_be_hidden()
        page.reload()
    press(page, "and this", "Take back")
    expect(message_box(page)).to_have_value("and this")
    send(page, SHORT)
    expect(page.locator(".turn .bubble")).to_have_text([COUNTING, SHORT, SHORT])
    expect(waiting(page)).to_have_count(0)


def test_what_a_stop_has_kept_and_the_end_of_the_run_handed_back_is_not_said_to_be_kept(page: Page) -> None:
    start_counting(page)
    say(page, "After this", SHORT)
    expect(waiting(page)).to_have_count(1)

    held: list[Route] = []
    page.route("**/terminate", lambda route: held.append(route))  # noqa: PLW0108 — a builtin method is no handler

    with page.expect_request("**/terminate"):
        page.keyboard.press("Escape")
        page.keyboard.press("Escape")
    expect(last_turn(page).locator(".inbox-fate")).to_have_text("1 waiting message was kept.")
    held[0].continue_()

    for _ in range(2):
        expect(page.locator(".run-end")).to_contain_text("This run has ended")
        expect(last_turn(page).locator(".inbox-fate")).to_have_text("1 waiting message was handed back to you.")
        page.reload()


def test_what_was_not_taken_back_in_time_is_said(page: Page) -> None:
    start_counting(page)
    say(page, "After this", SHORT)
    expect(waiting(page)).to_have_count(1)
    held: list[Route] = []
    page.route("**/inbox/*", lambda route: held.append(route))  # noqa: PLW0108 — a builtin method is no handler
    with page.expect_request("**/inbox/*"):
        press(page, SHORT, "Take back")
    say(page, "Instead", SHORT)
    expect(page.locator(".turn")).to_have_count(3)

    held[0].continue_()

    expect(page.locator("#trouble")).to_contain_text("The message was not taken back")
    expect(message_box(page)).to_have_value("")
    expect(waiting(page)).to_have_count(0)


def test_a_message_that_the_server_has_not_accepted_is_still_there_after_a_reload(page: Page) -> None:
    start_counting(page)
    page.route("**/input", lambda route: route.fulfill(status=413, json={"detail": "It is too long"}))
    say(page, "After this", SHORT)
    expect(waiting(page)).to_contain_text("not sent: It is too long")
    page.unroute("**/input")

    page.reload()

    expect(texts(page)).to_have_text([SHORT])
    expect(waiting(page)).to_contain_text("not sent: the page was left before the server had answered")
    press(page, SHORT, "Try again")
    for _ in range(2):
        expect(waiting(page)).to_contain_text("it is sent when this turn is over")
        expect(texts(page)).to_have_text([SHORT])
        page.reload()
    stop_button(page).click()
    expect(chips(page)).to_have_count(1)


# -- stops that are not the user's -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cause", "words", "why"),
    [
        ("liveness", "stopped: no progress", "Nothing had happened for too long."),
        ("deadline", "stopped: deadline", "The turn took longer than it was allowed to."),
        ("shutdown", "stopped: server shutdown", "The server was shut down while it worked on this."),
        ("server_lost", "stopped: server lost", "The server went away while it worked on this."),
    ],
)
def test_a_stop_by_the_system_is_never_shown_as_the_users(
    page: Page, server: ChatServer, cause: str, words: str, why: str
) -> None:
    inbox = {"policy": "keep", "kept": ["m"], "returned": [], "withdrawn": []}
    waits = {"type": "message_queued", "turn_id": TURN, "message_id": "m", "text": "me, too", "mode": "queue"}
    stop = {"type": "stop_requested", "turn_id": TURN, "cause": cause, "ends_run": False, "inbox": inbox}
    end = {"type": "turn_cancelled", "turn_id": TURN, "cause": cause, "receipt": [], "messages": [], "inbox": inbox}
    back = {"type": "message_returned", "message_id": "m", "text": "me, too"}

    show_log(page, server, [*STARTED, waits, stop, end, back, {"type": "run_cancelled", "cause": cause}])

    expect(chips(page)).to_have_text(words)
    expect(last_turn(page)).to_contain_text(why)
    expect(last_turn(page).locator(".inbox-fate")).to_have_text("1 waiting message was handed back to you.")
    expect(page.locator("#transcript")).not_to_contain_text("by you")
    expect(waiting(page)).to_contain_text("not sent: handed back to you")
