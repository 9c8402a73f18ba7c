"""Going back on the chat page: resume a stopped turn, ask again, take a turn out; in a real browser."""

from typing import Any

import pytest
from playwright.sync_api import Page, Route, expect

from tests.browser.chat_page import (
    COUNTING,
    SHORT,
    chips,
    expect_answer,
    expect_ended,
    last_turn,
    lose_first_answer,
    run_in,
    send,
    shell_script,
    start_counting,
    stop_button,
    tool_cards,
    ways_back,
)
from tests.browser.conftest import ChatServer, NewContext

pytestmark = [pytest.mark.browser, pytest.mark.spread(2, of="file")]

ALL_WAYS = ["Resume", "Ask again", "Take it out"]


def press(page: Page, name: str) -> None:
    page.get_by_role("group", name="Go back or go on").get_by_role("button", name=name).click()


def stop_counting(page: Page) -> None:
    start_counting(page)
    stop_button(page).click()
    expect(ways_back(page)).to_have_text(ALL_WAYS)


def left_out(page: Page) -> Any:
    """The lines that stand for turns which are no part of the conversation any more."""
    return page.locator(".fold > summary .fold-why")


def said(server: ChatServer, page: Page) -> list[tuple[str, str]]:
    """Role and text of what the server takes for the conversation."""
    messages = server.ask("GET", f"v1/runs/{run_in(page)}/transcript")["messages"]
    return [(message["role"], message["content"].strip()) for message in messages]


def hold(route: Route, held: list[Route]) -> None:
    held.append(route)


# -- resume ------------------------------------------------------------------------------------------


def test_resume_keeps_the_finished_goals_with_what_they_did_and_makes_the_others_anew(
    page: Page, server: ChatServer, key: str
) -> None:
    def goal(name: str, command: str, *needs: str) -> dict[str, Any]:
        tool = {"name": "shell", "arguments": {"command": command}}
        return {"id": name, "title": name, "tool": tool, "depends_on": list(needs)}

    once = f"mkdir {key} && echo begin && sleep 600; echo again"  # waits the first time only
    plan = {"goals": [goal("first", "echo one"), goal("second", once, "first"), goal("third", "echo three", "second")]}
    run = server.ask("POST", "v1/runs", {"input": "All three", "plan": plan})
    page.goto(f"{server.url}#run={run['run_id']}")
    expect(tool_cards(page).last.locator(".tool-output")).to_have_text("begin\n")
    stop_button(page).click()
    expect(ways_back(page)).to_have_text(ALL_WAYS)

    press(page, "Resume")

    for _ in range(2):
        expect(page.locator(".turn")).to_have_count(2)
        expect(last_turn(page)).to_have_attribute("data-state", "completed")
        expect(last_turn(page).locator(".plan .state-word")).to_have_text(["kept", "done", "done"])
        outputs = tool_cards(page).locator(".tool-output")
        expect(outputs.first).to_have_text("one\n")
        expect(outputs.nth(1)).to_contain_text("again\n")
        expect(outputs.last).to_have_text("three\n")
        expect(left_out(page)).to_have_text("resumed below")
        expect(ways_back(page)).to_have_text(["Ask again"])
        expect_ended(page)
        page.reload()


def test_a_stop_before_the_server_has_answered_to_resume_stops_the_turn_that_it_starts(page: Page) -> None:
    stop_counting(page)
    held: list[Route] = []
    page.route("**/resume", lambda route: hold(route, held))
    with page.expect_request("**/resume"):
        press(page, "Resume")

    expect(page.get_by_role("button", name="Resuming…")).to_be_visible()
    expect(page.locator("#run-state")).to_have_text("starting")
    stop_button(page).click()
    expect(stop_button(page)).to_have_text("Stopping…")
    held[0].continue_()

    expect(page.locator(".turn")).to_have_count(2)
    expect(last_turn(page).locator(".chip")).to_have_text("stopped by you")
    expect_ended(page)
    expect(ways_back(page)).to_have_text(ALL_WAYS)
    expect_answer(page)


# -- ask again ---------------------------------------------------------------------------------------


def test_ask_again_puts_a_new_answer_in_the_place_of_the_old_one(page: Page, server: ChatServer) -> None:
    expect_answer(page)
    expect(ways_back(page)).to_have_text(["Ask again"])

    press(page, "Ask again")

    for _ in range(2):
        expect(page.locator(".turn")).to_have_count(2)
        expect(last_turn(page)).to_have_attribute("data-state", "completed")
        expect(left_out(page)).to_have_text("asked again below")
        expect(page.locator(".turn .bubble:visible")).to_have_text([SHORT])
        assert said(server, page) == [("user", SHORT), ("assistant", "t1 t2 t3")]
        page.reload()


def test_ask_again_whose_answer_got_lost_is_not_doubled(page: Page) -> None:
    expect_answer(page)
    tries = lose_first_answer(page, "**/regenerate")
    with page.expect_response("**/regenerate"):
        press(page, "Ask again")

    expect(left_out(page)).to_have_count(1)
    expect(last_turn(page)).to_have_attribute("data-state", "completed")
    expect(ways_back(page)).to_have_text(["Ask again"])
    expect(page.locator(".turn")).to_have_count(2)
    expect(page.locator("#trouble")).to_be_hidden()
    assert len(tries) == 2


def test_a_message_that_waited_since_the_stop_follows_the_turn_that_is_asked_again(page: Page, key: str) -> None:
    send(page, shell_script(key, f"mkdir {key} && sleep 600; echo again"))
    expect(tool_cards(page)).to_have_count(1)
    send(page, SHORT)
    expect(page.locator(".pending")).to_contain_text("waiting")
    stop_button(page).click()
    expect(page.locator(".pending")).to_contain_text("before your next message")

    press(page, "Ask again")

    expect(page.locator(".turn")).to_have_count(3)
    expect(last_turn(page).locator(".bubble")).to_have_text(SHORT)
    expect(last_turn(page)).to_have_attribute("data-state", "completed")
    expect(page.locator(".pending")).to_have_count(0)


def test_while_a_turn_is_asked_again_a_message_that_waited_since_the_stop_waits_for_its_end(page: Page) -> None:
    start_counting(page)
    send(page, SHORT)
    stop_button(page).click()
    expect(page.locator(".pending")).to_contain_text("before your next message")

    press(page, "Ask again")

    expect(page.locator(".pending")).to_contain_text("it is sent when this turn is over")
    stop_button(page).click()
    expect(page.locator(".pending")).to_contain_text("before your next message")


# -- take it out -------------------------------------------------------------------------------------


def test_a_turn_that_is_taken_out_leaves_one_line_that_can_be_unfolded(page: Page, server: ChatServer) -> None:
    stop_counting(page)

    press(page, "Take it out")

    for _ in range(2):
        expect(left_out(page)).to_have_text("taken out of the conversation")
        expect(ways_back(page)).to_have_text(["Ask again"])
        expect(page.locator(".turn .bubble")).to_be_hidden()
        page.locator(".fold > summary").press("Enter")
        expect(page.locator(".turn .text")).to_contain_text("t1 t2 t3")
        expect(chips(page)).to_have_text("stopped by you")
        assert said(server, page) == []
        page.reload()
    expect(left_out(page)).to_have_text("taken out of the conversation")  # the past is loaded
    expect_answer(page)
    expect(left_out(page)).to_have_text("taken out of the conversation")
    assert said(server, page) == [("user", SHORT), ("assistant", "t1 t2 t3")]


def test_what_was_taken_out_can_be_asked_again(page: Page, server: ChatServer) -> None:
    stop_counting(page)
    press(page, "Take it out")
    expect(left_out(page)).to_have_text("taken out of the conversation")

    press(page, "Ask again")

    expect(page.locator(".turn")).to_have_count(2)
    expect(left_out(page)).to_have_text("asked again below")
    expect(last_turn(page).locator(".text")).to_contain_text("t3")
    stop_button(page).click()
    expect(ways_back(page)).to_have_text(ALL_WAYS)


# -- when they are offered ---------------------------------------------------------------------------


def test_only_the_newest_turn_of_a_run_that_waits_offers_a_way_back(page: Page) -> None:
    start_counting(page)
    expect(ways_back(page)).to_have_count(0)
    stop_button(page).click()
    expect(last_turn(page).locator(".ways-back button:visible")).to_have_text(ALL_WAYS)

    start_counting(page)
    expect(ways_back(page)).to_have_count(0)
    stop_button(page).click()
    expect(last_turn(page).locator(".ways-back button:visible")).to_have_text(ALL_WAYS)
    expect(ways_back(page)).to_have_count(3)

    start_counting(page)
    page.keyboard.press("Escape")
    page.keyboard.press("Escape")
    expect(page.locator(".run-end")).to_be_visible()
    expect(ways_back(page)).to_have_count(0)


def test_a_turn_that_failed_offers_all_ways_and_a_batch_run_none(page: Page, server: ChatServer) -> None:
    send(page, "/script error status=400 on=goal")
    expect(last_turn(page)).to_have_attribute("data-state", "failed")
    expect(ways_back(page)).to_have_text(ALL_WAYS)

    run = server.ask("POST", "v1/runs", {"input": SHORT, "interactive": False})
    page.goto(f"{server.url}#run={run['run_id']}")

    expect(page.locator(".run-end")).to_contain_text("This run is complete")
    expect(ways_back(page)).to_have_count(0)


def test_a_refusal_is_shown_with_the_servers_reason_and_the_ways_stay(page: Page) -> None:
    stop_counting(page)
    problem = {"code": "insufficient_scope", "detail": "This token may not go back."}
    page.route("**/rollback", lambda route: route.fulfill(status=403, json=problem))

    press(page, "Take it out")

    expect(page.locator("#trouble-text")).to_have_text("The turn was not taken out: This token may not go back.")
    expect(ways_back(page)).to_have_text(ALL_WAYS)
    page.unroute("**/rollback")
    press(page, "Take it out")
    expect(page.locator("#trouble")).to_be_hidden()
    expect(left_out(page)).to_have_text("taken out of the conversation")


def test_another_browser_sees_the_turn_taken_out_and_asked_again(
    page: Page, new_context: NewContext, server: ChatServer
) -> None:
    stop_counting(page)
    other = new_context().new_page()
    other.goto(f"{server.url}#token={server.token}&run={run_in(page)}")
    expect(ways_back(other)).to_have_text(ALL_WAYS)

    press(page, "Take it out")
    expect(left_out(other)).to_have_text("taken out of the conversation")
    press(other, "Ask again")

    for each in (page, other):
        expect(left_out(each)).to_have_text("asked again below")
        expect(last_turn(each).locator(".text")).to_contain_text("t3")
    stop_button(other).click()
    expect(ways_back(page)).to_have_text(ALL_WAYS)


def test_the_ways_work_by_the_keyboard_and_are_said_aloud(page: Page) -> None:
    stop_counting(page)
    page.get_by_role("button", name="Take it out").press("Enter")

    expect(left_out(page)).to_have_count(1)
    expect(page.locator("#announcer")).to_have_text("The turn is taken out of the conversation")
    expect(page.get_by_role("textbox", name="Message")).to_be_focused()
    expect(page.locator(".turn")).to_have_attribute("aria-label", "Turn 1, cancelled, taken out of the conversation")


def test_nothing_is_offered_while_a_message_is_on_its_way(page: Page) -> None:
    stop_counting(page)
    held: list[Route] = []
    page.route("**/input", lambda route: hold(route, held))
    with page.expect_request("**/input"):
        send(page, COUNTING)

    expect(ways_back(page)).to_have_count(0)
    held[0].continue_()
    expect(last_turn(page).locator(".text")).to_contain_text("t3")
    stop_button(page).click()
    expect(ways_back(page)).to_have_text(ALL_WAYS)
