"""Small stops on the chat page: one goal of a plan or one tool call ends, and the rest of the turn goes on."""

import json
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, Route, expect

from tests.browser.chat_page import (
    SHORT,
    expect_ended,
    expect_working,
    last_turn,
    lose_first_answer,
    send,
    shell_script,
    state_of,
    stop_button,
    tool_cards,
)
from tests.browser.conftest import ChatServer
from tests.support.delegating import ENDLESS
from tests.support.model_server import script
from tests.support.plans import goal

pytestmark = [pytest.mark.browser, pytest.mark.spread(2, of="file")]

STOP_SHELL = "Stop this call of shell"
CALL_STOPS = "**/calls/*/cancel"


def start_two_commands(page: Page, key: str) -> tuple[Locator, Locator]:
    """A turn that runs two commands, which last longer than any test: their cards."""
    send(page, shell_script(key, "echo one; sleep 600", "echo two; sleep 600"))
    expect(tool_cards(page).locator(".tool-output")).to_have_text(["one\n", "two\n"])
    return tool_cards(page).first, tool_cards(page).last


def row(page: Page, goal_id: str) -> Locator:
    """A goal's row in the plan."""
    return last_turn(page).locator(f'.plan li[data-goal-id="{goal_id}"]')


def hold(page: Page, path: str) -> list[Route]:
    """Requests to ``path`` get no answer; they are in the list."""
    held: list[Route] = []
    page.route(path, lambda route: held.append(route))  # noqa: PLW0108 — a builtin method is no handler
    return held


# -- a goal of a plan --------------------------------------------------------------------------------


def test_one_goal_of_a_plan_is_stopped_and_its_siblings_go_on(page: Page, server: ChatServer, key: str) -> None:
    def endless(name: str) -> str:
        return script("trickle", key=f"{key}-{name}", **ENDLESS)

    inner = goal("box", goals=[goal("x", endless("x")), goal("y", endless("y"))])
    plan = {"goals": [goal("a", endless("a")), inner, goal("c", endless("c"), "a")]}
    run = server.ask("POST", "v1/runs", {"input": "All of it", "plan": plan})
    page.goto(f"{server.url}#run={run['run_id']}")
    said = last_turn(page).locator(".goal .text")
    expect(said).to_have_count(3)

    page.get_by_role("button", name="Stop a", exact=True).click()

    expect(state_of(row(page, "a"))).to_have_text("stopped by you")
    expect(last_turn(page).locator('.goal[data-goal-id="a"] .goal-head .state-word')).to_have_text("stopped by you")
    expect(state_of(row(page, "c"))).to_have_text("skipped")
    before = said.nth(1).inner_text()
    expect(said.nth(1)).not_to_have_text(before)
    expect(state_of(row(page, "x"))).to_have_text("working")
    expect_working(page)

    page.get_by_role("button", name="Stop box", exact=True).press("Enter")

    for _ in range(2):
        expect(last_turn(page)).not_to_have_attribute("data-state", "running")
        expect(last_turn(page).locator(".plan .state-word")).to_have_text(
            ["stopped by you", "stopped by you", "stopped", "stopped", "skipped"]
        )
        expect(last_turn(page).locator(".part-stop:visible")).to_have_count(0)
        expect_ended(page)
        page.reload()


# -- a tool call -------------------------------------------------------------------------------------


def test_one_tool_call_is_stopped_and_the_other_goes_on_also_after_a_reload(page: Page, key: str) -> None:
    first, second = start_two_commands(page, key)

    first.get_by_role("button", name=STOP_SHELL).click()

    for _ in range(2):
        expect(state_of(first)).to_have_text("stopped by you")
        expect(first.locator(".tool-output")).to_have_text("one\n")
        expect(first.locator(".icon-working, .part-stop:visible")).to_have_count(0)
        expect(state_of(second)).to_have_text("running")
        expect_working(page)
        page.reload()

    second.get_by_role("button", name=STOP_SHELL).click()

    for _ in range(2):
        expect(last_turn(page)).to_have_attribute("data-state", "completed")
        expect(state_of(tool_cards(page))).to_have_text(["stopped by you"] * 2)
        expect(last_turn(page).locator(".parts > .text")).to_have_text("t1 t2 t3")
        expect_ended(page)
        page.reload()


def test_stopping_is_shown_at_once_and_further_clicks_send_nothing(page: Page, key: str) -> None:
    first, second = start_two_commands(page, key)
    held = hold(page, CALL_STOPS)

    with page.expect_request(CALL_STOPS):
        first.get_by_role("button", name=STOP_SHELL).dblclick()
    expect(state_of(first)).to_have_text("stopping")
    button = first.get_by_role("button", name="Stopping this call of shell")
    expect(button).to_have_attribute("aria-disabled", "true")
    button.click(force=True)  # that it says it is disabled is for people

    expect(state_of(second)).to_have_text("running")
    expect_working(page)
    assert len(held) == 1
    assert list(json.loads(held[0].request.post_data or "")) == ["if_turn"]
    held[0].continue_()
    expect(state_of(first)).to_have_text("stopped by you")
    expect(state_of(second)).to_have_text("running")


def test_the_stop_of_a_tool_call_works_by_the_keyboard_and_the_focus_stays_near(page: Page, key: str) -> None:
    first, _ = start_two_commands(page, key)
    button = first.get_by_role("button", name=STOP_SHELL)
    page.get_by_role("button", name="New chat").focus()
    for _ in range(200):  # past the chats of other tests
        if button.evaluate("node => node === document.activeElement"):
            break
        page.keyboard.press("Tab")
    expect(button).to_be_focused()

    page.keyboard.press("Enter")

    expect(state_of(first)).to_have_text("stopped by you")
    expect(first).to_be_focused()


def test_a_stop_whose_answer_was_lost_is_sent_again_and_harmless(page: Page, key: str) -> None:
    first, second = start_two_commands(page, key)
    tries = lose_first_answer(page, CALL_STOPS)

    first.get_by_role("button", name=STOP_SHELL).click()

    expect(state_of(first)).to_have_text("stopped by you")
    expect(state_of(second)).to_have_text("running")
    assert len(set(tries)) == 1
    expect_working(page)


def test_a_refused_stop_is_said_and_can_be_tried_again(page: Page, key: str) -> None:
    first, _ = start_two_commands(page, key)
    problem = {"status": 403, "code": "forbidden", "detail": "this token may not stop"}
    page.route(CALL_STOPS, lambda route: route.fulfill(status=403, json=problem), times=1)

    first.get_by_role("button", name=STOP_SHELL).click()

    expect(page.locator("#trouble")).to_contain_text("The stop was refused: this token may not stop")
    expect(state_of(first)).to_have_text("running")
    first.get_by_role("button", name=STOP_SHELL).click()
    expect(state_of(first)).to_have_text("stopped by you")


def test_a_message_that_waits_for_the_turn_is_not_held_back_by_the_stop_of_a_part(page: Page, key: str) -> None:
    first, second = start_two_commands(page, key)
    send(page, SHORT)
    waiting = page.locator('.pending[data-fate="queued"]')
    expect(waiting).to_have_count(1)

    first.get_by_role("button", name=STOP_SHELL).click()
    expect(state_of(first)).to_have_text("stopped by you")
    expect(waiting).to_have_count(1)
    second.get_by_role("button", name=STOP_SHELL).click()

    expect(page.locator(".turn")).to_have_count(2)
    expect(last_turn(page)).to_have_attribute("data-state", "completed")
    expect(waiting).to_have_count(0)


def test_the_stop_buttons_of_a_small_screen_are_large_enough_and_nothing_sticks_out(
    page: Page, server: ChatServer, key: str
) -> None:
    page.set_viewport_size({"width": 360, "height": 640})
    long = script("trickle", key=key, tokens=10, interval_ms=60_000)  # the page follows what is said: one word, then none
    plan: dict[str, Any] = {"goals": [goal("a" * 60, long), goal("b", long)]}
    run = server.ask("POST", "v1/runs", {"input": "Both", "plan": plan})
    page.goto(f"{server.url}#run={run['run_id']}")
    expect(last_turn(page).locator(".goal .text")).to_have_count(2)

    for button in last_turn(page).locator(".plan .part-stop").all():
        button.scroll_into_view_if_needed()
        expect(button).to_be_in_viewport(ratio=1)
        box = button.bounding_box()
        assert box is not None
        assert min(box["width"], box["height"]) >= 24
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    stop_button(page).click()
    expect_ended(page)
