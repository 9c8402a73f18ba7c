"""The chat page where a run begins or ends: nothing blinks, nothing is lost, and every place names the same state."""

import json
from typing import Any

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

pytestmark = [pytest.mark.browser, pytest.mark.spread(2, of="file")]

DELAY_S = 0.4

#: Notes each distinct sight of the page, once a frame.
WATCH = """() => {
    window.sights = [];
    const shown = (node) => node !== null && node.checkVisibility({visibilityProperty: true});
    const look = () => {
        const stop = document.querySelector("#stop");
        const entry = document.querySelector("#chats a[aria-current] .chat-state span");
        const sight = {
            title: document.querySelector("#title").textContent,
            bubbles: [...document.querySelectorAll("#transcript .bubble")].map((node) => node.textContent),
            stop: shown(stop) ? stop.textContent.trim() : null,
            state: document.querySelector("#run-state").textContent,
            entry: entry === null ? null : entry.textContent,
        };
        const last = window.sights.at(-1);
        if (JSON.stringify(last) !== JSON.stringify(sight)) window.sights.push(sight);
        requestAnimationFrame(look);
    };
    look();
}"""


def watch(page: Page) -> None:
    page.evaluate(WATCH)


def sights(page: Page) -> list[dict[str, Any]]:
    seen: list[dict[str, Any]] = page.evaluate("window.sights")
    return seen


def delay_everything(page: Page) -> None:
    """Each request of the API takes a while longer, as over a slow line."""

    def pass_on(route: Route) -> None:
        page.wait_for_timeout(DELAY_S * 1000)
        route.continue_()

    page.route("**/v1/**", pass_on)


# -- a run begins ----------------------------------------------------------------------------------


def test_the_message_its_title_and_stop_stay_from_the_click_on_while_a_run_opens(page: Page) -> None:
    expect(stop_button(page)).to_be_hidden()
    delay_everything(page)
    watch(page)

    send(page, COUNTING)
    expect(last_turn(page).locator(".text")).to_contain_text("t3")
    page.unroute_all(behavior="wait")

    seen = sights(page)
    first = next(index for index, sight in enumerate(seen) if sight["bubbles"])
    assert {sight["title"] for sight in seen[first:]} == {COUNTING}
    assert {sight["stop"] for sight in seen[first:]} == {"Stop"}
    assert all(sight["bubbles"] == [COUNTING] for sight in seen[first:])
    assert "ready" not in {sight["state"] for sight in seen[first:]}
    stop_button(page).click()
    expect(chips(page)).to_have_count(1)


def test_a_stop_between_the_servers_answer_and_the_first_events_stops_the_turn(page: Page) -> None:
    held: list[Route] = []

    def hold_the_first(route: Route) -> None:
        if held:
            route.continue_()
        else:
            held.append(route)

    page.route("**/events", hold_the_first)
    with page.expect_request("**/events"):
        send(page, COUNTING)
    expect(page.locator("#transcript .bubble")).to_have_text(COUNTING)
    watch(page)

    with page.expect_response("**/cancel"):
        stop_button(page).click()
    expect(stop_button(page)).to_have_text("Stopping…")
    held[0].continue_()

    expect(chips(page)).to_have_text("stopped by you")
    expect(stop_button(page)).to_be_hidden()
    words = [sight["stop"] for sight in sights(page)]
    assert [word for index, word in enumerate(words) if word != words[index - 1]] == ["Stop", "Stopping…", None]
    expect_ended(page)
    expect_answer(page)


# -- a session of several runs ---------------------------------------------------------------------


def end_run(page: Page) -> None:
    page.keyboard.press("Escape")
    page.keyboard.press("Escape")
    expect(page.locator(".run-end")).to_be_visible()


def stop_a_plan(page: Page) -> None:
    send(page, FOUR_GOALS)
    expect(last_turn(page).locator(".goal")).to_have_count(3)
    end_run(page)


def expect_the_stopped_plan(page: Page) -> None:
    first = page.locator(".turn").first
    expect(first.locator(".plan li")).to_have_count(4)
    expect(first.locator(".goal-head")).to_have_count(3)
    expect(first.locator(".receipt summary")).to_contain_text("3 model calls cancelled")
    expect(first.locator(".chip")).to_have_text("stopped by you")


def test_the_plans_and_receipts_of_earlier_runs_stay_and_the_chat_keeps_its_name(page: Page) -> None:
    stop_a_plan(page)
    title = page.locator("#title").inner_text()
    assert title.startswith("Compare three ways")
    watch(page)

    expect_answer(page)
    start_counting(page)
    end_run(page)
    expect_answer(page)

    expect_the_stopped_plan(page)
    expect(page.locator(".turn .bubble")).to_have_text([FOUR_GOALS, SHORT, COUNTING, SHORT])
    assert {sight["title"] for sight in sights(page)} == {title}
    assert all(sight["bubbles"][0] == FOUR_GOALS for sight in sights(page))
    expect(page.locator("#chats a[aria-current] .chat-title")).to_have_text(title)

    page.reload()

    expect(page.locator(".turn .bubble")).to_have_text([FOUR_GOALS, SHORT, COUNTING, SHORT])
    expect_the_stopped_plan(page)
    expect(page.locator(".turn .receipt")).to_have_count(2)
    expect(page.locator("#title")).to_have_text(title)
    expect(page.locator("#chats a[aria-current] .chat-title")).to_have_text(title)
    expect_ended(page)


def test_a_batch_run_stays_in_view_when_the_next_message_takes_its_session_up(page: Page, server: ChatServer) -> None:
    answer = page.request.post(
        f"{server.url}v1/runs",
        headers={"Authorization": f"Bearer {server.token}", "Content-Type": "application/json"},
        data=json.dumps({"input": SHORT, "interactive": False, "metadata": {"title": "By night"}}),
    )
    page.goto(f"{server.url}#run={answer.json()['run_id']}")
    expect(page.locator(".run-end")).to_contain_text("This run is complete")

    expect_answer(page)
    page.reload()

    expect(page.locator(".turn .bubble")).to_have_text([SHORT, SHORT])
    expect(page.locator("#title")).to_have_text("By night")
    expect(page.locator("#chats a[aria-current] .chat-title")).to_have_text("By night")


def test_an_earlier_run_whose_log_broke_off_is_read_again(
    page: Page, new_context: NewContext, server: ChatServer
) -> None:
    stop_a_plan(page)
    ended = page.evaluate("location.hash.slice(5)")
    expect_answer(page)
    run = page.evaluate("location.hash.slice(1)")
    other = new_context().new_page()
    failures = iter([True])
    other.route(f"**/{ended}/events", lambda route: route.abort() if next(failures, False) else route.continue_())

    other.goto(f"{server.url}#token={server.token}&{run}")

    expect(other.locator(".turn")).to_have_count(2)
    expect_the_stopped_plan(other)
    expect(other.locator("#trouble")).to_be_hidden()


# -- one state -------------------------------------------------------------------------------------


def test_the_list_of_chats_never_contradicts_the_header(page: Page) -> None:
    start_counting(page)
    expect(page.locator("#chats a[aria-current]")).to_contain_text("working")
    watch(page)

    page.keyboard.press("Escape")
    expect(page.locator("#run-state")).to_have_text("ready")
    expect_answer(page)
    start_counting(page)
    end_run(page)
    expect_answer(page)

    seen = sights(page)
    assert {sight["entry"] for sight in seen} >= {"working", "stopping", "ready", "ended", "starting"}
    assert [sight for sight in seen if sight["entry"] != sight["state"]] == []
