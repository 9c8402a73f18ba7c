"""STOP on the chat page, and what a user sees of a turn, in a real browser before a real server."""

import re

import pytest
from playwright.sync_api import Page, Route, expect

from tests.browser.chat_page import (
    COUNTING,
    FOUR_GOALS,
    SHORT,
    chips,
    expect_answer,
    expect_ended,
    last_turn,
    send,
    start_counting,
    stop_button,
)
from tests.browser.conftest import ChatServer, NewContext

pytestmark = pytest.mark.browser


# -- stop ----------------------------------------------------------------------------------------


def test_stop_keeps_the_text_shows_the_receipt_and_the_next_message_works(page: Page) -> None:
    start_counting(page)

    stop_button(page).click()

    expect(chips(page)).to_have_text("stopped by you")
    expect(last_turn(page).locator(".text")).to_contain_text("t1 t2 t3")
    summary = last_turn(page).locator(".receipt summary")
    expect(summary).to_contain_text("1 model call cancelled")
    summary.click()
    row = last_turn(page).get_by_role("row").nth(1)
    expect(row).to_contain_text(re.compile(r"Model call.*cancelled.*\d+ ms"))
    expect_ended(page)
    expect_answer(page)


def test_stopping_is_shown_before_the_server_answers_and_further_clicks_send_nothing(page: Page) -> None:
    start_counting(page)
    held: list[Route] = []
    page.route("**/cancel", lambda route: hold(route, held))

    with page.expect_request("**/cancel"):
        stop_button(page).click()
    expect(stop_button(page)).to_have_text("Stopping…")
    said = last_turn(page).locator(".text").inner_text()
    for _ in range(5):
        stop_button(page).click()

    # More text, which is late by now, does not bring the turn back to running.
    expect(last_turn(page).locator(".text")).not_to_have_text(said)
    expect(stop_button(page)).to_have_text("Stopping…")
    assert len(held) == 1
    held[0].continue_()
    expect(chips(page)).to_have_text("stopped by you")
    expect_ended(page)


def test_the_click_itself_shows_stopping(page: Page) -> None:
    start_counting(page)

    word = page.evaluate(
        "() => { document.querySelector('#stop').click(); return document.querySelector('#stop').textContent.trim(); }"
    )

    assert word == "Stopping…"
    expect(chips(page)).to_have_count(1)


def test_a_stop_before_the_server_has_answered_the_message_stops_the_turn_that_it_starts(page: Page) -> None:
    held: list[Route] = []
    page.route("**/v1/runs", lambda route: held.append(route) if route.request.method == "POST" else route.continue_())
    with page.expect_request(lambda request: request.url.endswith("/v1/runs") and request.method == "POST"):
        send(page, COUNTING)

    stop_button(page).click()
    expect(stop_button(page)).to_have_text("Stopping…")
    held[0].continue_()

    expect(chips(page)).to_have_text("stopped by you")
    expect_ended(page)
    expect_answer(page)


def test_a_stop_that_cannot_reach_the_server_is_sent_again(page: Page) -> None:
    start_counting(page)
    tries = iter(range(10))
    page.route("**/cancel", lambda route: route.abort() if next(tries) < 2 else route.continue_())

    stop_button(page).click()

    expect(chips(page)).to_have_text("stopped by you")
    expect_ended(page)


def test_escape_stops_the_turn(page: Page) -> None:
    start_counting(page)

    page.keyboard.press("Escape")

    expect(chips(page)).to_have_text("stopped by you")
    expect_ended(page)
    expect(page.locator("#run-state")).to_have_text("ready")


def test_escape_twice_ends_the_run_and_the_next_message_takes_the_conversation_up(page: Page) -> None:
    start_counting(page)

    page.keyboard.press("Escape")
    page.keyboard.press("Escape")

    expect(page.locator(".run-end")).to_contain_text("This run has ended (stopped by you)")
    expect(page.locator("#run-state")).to_have_text("ended")
    expect_ended(page)
    expect_answer(page)
    expect(page.locator(".turn .bubble")).to_have_text([COUNTING, SHORT])
    expect(chips(page)).to_have_text("stopped by you")


def test_a_second_escape_ends_the_run_while_the_turn_still_stops_however_late_it_comes(page: Page) -> None:
    start_counting(page)
    page.route("**/cancel", lambda route: hold(route, []))
    page.keyboard.press("Escape")
    expect(page.get_by_text("Esc again ends the chat")).to_be_visible()

    page.wait_for_timeout(1000)  # longer than two presses that are meant as one
    page.keyboard.press("Escape")

    expect(page.locator(".run-end")).to_contain_text("This run has ended (stopped by you)")
    expect_ended(page)


def test_a_second_escape_does_nothing_once_the_chat_is_ready(page: Page) -> None:
    start_counting(page)
    ends: list[str] = []
    page.on("request", lambda request: ends.append(request.url) if request.url.endswith("/terminate") else None)
    page.keyboard.press("Escape")
    expect(page.locator("#run-state")).to_have_text("ready")
    expect(page.get_by_text("Esc again ends the chat")).to_be_hidden()

    page.wait_for_timeout(700)  # longer than two presses that are meant as one
    page.keyboard.press("Escape")
    expect_answer(page)

    expect(page.locator("#run-state")).to_have_text("ready")
    assert ends == []


def test_three_stopped_turns_keep_their_text_after_a_reload_and_nothing_is_left_open(page: Page) -> None:
    texts = []
    for number in range(1, 4):
        start_counting(page)
        stop_button(page).click()
        expect(chips(page)).to_have_count(number)
        texts.append(last_turn(page).locator(".text").inner_text())

    page.reload()

    expect(chips(page)).to_have_text(["stopped by you"] * 3)
    assert page.locator(".turn .text").all_inner_texts() == texts
    expect(page.locator(".turn .receipt")).to_have_count(3)
    expect_ended(page)


def test_a_second_browser_shows_stop_and_its_stop_reaches_the_first(
    page: Page, new_context: NewContext, server: ChatServer
) -> None:
    start_counting(page)
    run = page.evaluate("location.hash.slice(1)")

    other = new_context().new_page()
    other.goto(f"{server.url}#token={server.token}&{run}")
    expect(stop_button(other)).to_have_text("Stop")
    expect(last_turn(other).locator(".text")).to_contain_text("t1 t2 t3")
    stop_button(other).click()

    for each in (page, other):
        expect(chips(each)).to_have_text("stopped by you")
        expect_ended(each)


def test_six_tabs_that_stream_leave_room_for_a_stop_in_each(new_context: NewContext, server: ChatServer) -> None:
    context = new_context()
    tabs = [context.new_page() for _ in range(6)]
    for tab in tabs:
        tab.goto(server.address)
    for tab in tabs:
        start_counting(tab)

    for tab in tabs:
        stop_button(tab).click()

    for tab in tabs:
        expect(chips(tab)).to_have_text("stopped by you")


def hold(route: Route, held: list[Route]) -> None:
    held.append(route)


# -- what a turn looks like ----------------------------------------------------------------------------


def test_a_plan_shows_each_goal_what_it_waits_for_and_what_the_stop_made_of_it(page: Page) -> None:
    send(page, FOUR_GOALS)
    goals = last_turn(page).locator(".plan li")
    expect(goals).to_have_count(4)
    expect(goals.nth(0)).to_contain_text("working")
    expect(goals.nth(3)).to_contain_text("waiting")
    expect(goals.nth(3)).to_contain_text("after Compare three ways")
    expect(last_turn(page).locator(".goal")).to_have_count(3)

    stop_button(page).click()

    expect(chips(page)).to_have_text("stopped by you")
    expect(goals.nth(0)).to_contain_text("stopped")
    expect(goals.nth(3)).to_contain_text("never started")
    expect(last_turn(page).locator(".receipt summary")).to_contain_text("3 model calls cancelled, 1 goal never started")
    expect_ended(page)


def test_a_failing_gateway_shows_the_error_and_the_next_message_works(page: Page) -> None:
    send(page, "/script error status=400 on=goal")

    failure = last_turn(page).get_by_role("alert")
    expect(failure).to_contain_text("This turn failed")
    expect(failure).to_contain_text("answered 400")
    expect_ended(page)
    expect_answer(page)


def test_a_failed_goal_shows_its_error_beside_the_others(page: Page) -> None:
    bad = '{"id":"bad","title":"Bad","prompt":"/script\\u0020error\\u0020status=400","depends_on":[]}'
    good = '{"id":"good","title":"Good","prompt":"/script\\u0020trickle\\u0020tokens=3","depends_on":[]}'
    after = '{"id":"after","title":"After","prompt":"x","depends_on":["bad"]}'

    send(page, f"/script plan on=plan plan=[{bad},{good},{after}]")

    expect(last_turn(page)).to_have_attribute("data-state", "completed")
    goals = last_turn(page).locator(".plan li")
    expect(goals.nth(0)).to_contain_text("failed")
    expect(goals.nth(1)).to_contain_text("done")
    expect(goals.nth(2)).to_contain_text("skipped")
    expect(last_turn(page).locator(".goal-error:visible")).to_contain_text("answered 400")
    expect_ended(page)


def test_a_wait_for_a_busy_model_is_shown_with_its_cap_and_can_be_stopped(page: Page) -> None:
    send(page, "/script busy retry_after_s=300000 on=goal")
    retry = last_turn(page).locator(".retry:visible")
    expect(retry).to_contain_text(re.compile(r"The model is busy, trying again in \d+ s \(attempt 2 of 5\)"))
    expect(retry).to_contain_text("capped")

    stop_button(page).click()

    expect(chips(page)).to_have_text("stopped by you")
    expect(last_turn(page).locator(".receipt summary")).to_contain_text("1 wait cancelled")
    expect(retry).to_have_count(0)


def test_a_plan_that_the_model_got_wrong_is_explained(page: Page) -> None:
    send(page, "/script plan on=plan nonsense=1")

    expect(last_turn(page).locator(".note")).to_contain_text("Working on this as one goal")
    stop_button(page).click()
    expect(chips(page)).to_have_count(1)


def test_a_message_that_is_sent_meanwhile_waits_and_is_then_answered(page: Page) -> None:
    send(page, "/script trickle tokens=30 interval_ms=50 on=goal")
    expect(last_turn(page).locator(".text")).to_contain_text("t1")

    send(page, SHORT)

    waiting = page.locator(".pending")
    expect(waiting).to_contain_text("waiting")
    expect(waiting).to_have_count(0)
    expect(page.locator(".turn")).to_have_count(2)
    expect(last_turn(page)).to_have_attribute("data-state", "completed")


def test_a_message_that_waits_at_a_stop_goes_before_the_next_one(page: Page) -> None:
    start_counting(page)
    send(page, SHORT)
    expect(page.locator(".pending")).to_contain_text("waiting")

    stop_button(page).click()
    expect(page.locator(".pending")).to_contain_text("before your next message")
    send(page, "/script trickle tokens=2 on=goal")

    expect(page.locator(".turn .bubble")).to_have_text([COUNTING, SHORT, "/script trickle tokens=2 on=goal"])
    expect(page.locator(".pending")).to_have_count(0)


def test_a_message_that_waits_when_the_run_ends_is_handed_back_into_the_box(page: Page) -> None:
    start_counting(page)
    send(page, "Do not lose me")
    expect(page.locator(".pending")).to_contain_text("waiting")

    page.keyboard.press("Escape")
    page.keyboard.press("Escape")

    for _ in range(2):
        expect(page.locator(".run-end")).to_be_visible()
        expect(page.get_by_role("textbox", name="Message")).to_have_value("Do not lose me")
        expect(page.locator(".pending")).to_have_count(0)
        page.reload()


def test_shift_enter_starts_a_new_line(page: Page) -> None:
    box = page.get_by_role("textbox", name="Message")
    box.fill("one")
    box.press("Shift+Enter")
    box.press_sequentially("two")

    expect(box).to_have_value("one\ntwo")
    expect(page.locator(".turn")).to_have_count(0)


def test_what_a_model_thinks_is_folded_away_and_no_part_of_its_answer(page: Page) -> None:
    send(page, "/script trickle tokens=3 reasoning=4 interval_ms=20 on=goal")

    expect(last_turn(page)).to_have_attribute("data-state", "completed")
    expect(last_turn(page).locator(".text")).to_have_text("t1 t2 t3")
    thinking = last_turn(page).locator(".thinking")
    expect(thinking.locator(".thoughts")).to_be_hidden()
    thinking.get_by_text("thinking").click()
    expect(thinking.locator(".thoughts")).to_have_text("r1 r2 r3 r4")
    expect_ended(page)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_small_screen_shows_stop_and_nothing_sticks_out(
    new_context: NewContext, server: ChatServer, scheme: str
) -> None:
    page = new_context(viewport={"width": 360, "height": 640}, color_scheme=scheme).new_page()
    page.goto(server.address)
    send(page, FOUR_GOALS)
    expect(last_turn(page).locator(".goal")).to_have_count(3)
    expect(stop_button(page)).to_be_in_viewport(ratio=1)

    stop_button(page).click()
    page.locator(".receipt summary").click()

    expect(page.get_by_role("cell", name="never started")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    page.get_by_role("button", name="Chats").click()
    expect(page.locator("#chats a[aria-current]")).to_contain_text("Compare three ways")


def test_a_busy_model_is_shown_while_the_plan_is_made_too_and_a_stop_there_says_that_nothing_was_said(
    page: Page,
) -> None:
    send(page, "/script busy retry_after_s=30 on=plan")
    expect(last_turn(page).locator(".retry:visible")).to_contain_text("attempt 2 of 5")

    stop_button(page).click()

    expect(last_turn(page).locator(".stopped")).to_have_text("stopped by youNothing had been said yet.")
    expect_ended(page)
    expect_answer(page)
