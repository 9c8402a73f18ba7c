"""The chat page's token, its stream of events, and what it makes of them."""

import pytest
from playwright.sync_api import Page, Route, expect

from tests.browser.chat_page import (
    COUNTING,
    chips,
    expect_answer,
    expect_ended,
    last_turn,
    lose_first_answer,
    send,
    start_counting,
    stop_button,
)
from tests.browser.conftest import ChatServer, NewContext

pytestmark = [pytest.mark.browser, pytest.mark.spread(2, of="file")]


def test_the_token_leaves_the_address_at_once(page: Page, server: ChatServer) -> None:
    expect(page.get_by_role("textbox", name="Message")).to_be_visible()

    assert page.url == server.url


def test_without_a_token_the_page_says_how_to_get_one_and_takes_it(new_context: NewContext, server: ChatServer) -> None:
    page = new_context().new_page()
    page.goto(server.url)
    expect(page.get_by_text("make token SUB=alice")).to_be_visible()

    page.get_by_label("Token", exact=True).fill("nonsense")
    page.get_by_role("button", name="Open the chat").click()
    expect(page.get_by_role("alert")).to_have_text("The token is malformed.")
    page.get_by_label("Token", exact=True).fill(server.token)
    page.get_by_role("button", name="Open the chat").click()

    expect_answer(page)


def test_a_reload_returns_to_the_turn_that_runs(page: Page) -> None:
    start_counting(page)

    page.reload()

    expect(last_turn(page).locator(".text")).to_contain_text("t1 t2 t3")
    stop_button(page).click()
    expect(chips(page)).to_have_text("stopped by you")


def test_chats_are_listed_and_can_be_opened_again(page: Page) -> None:
    start_counting(page)
    expect(page.locator("#chats a[aria-current]")).to_contain_text("working")
    page.get_by_role("button", name="New chat").click()
    expect(page.locator(".turn")).to_have_count(0)
    expect(stop_button(page)).to_be_hidden()

    page.locator("#chats a").first.click()

    expect(last_turn(page).locator(".bubble")).to_have_text(COUNTING)
    stop_button(page).click()
    expect(page.locator("#chats a[aria-current]")).to_contain_text("ready")


def test_a_message_whose_answer_got_lost_is_not_doubled(page: Page) -> None:
    expect_answer(page)
    tries = lose_first_answer(page, "**/input")
    with page.expect_response("**/input") as second:
        expect_answer(page)
    page.unroute("**/input")
    expect_answer(page)

    assert second.value.json()["disposition"] == "duplicate"
    assert len(tries) == 2
    assert tries[0] == tries[1]
    expect(page.locator(".turn")).to_have_count(3)


def test_a_refused_message_stays_with_the_servers_reason(page: Page) -> None:
    expect_answer(page)

    send(page, "x" * 1_100_000)

    expect(page.locator(".pending .fate")).to_contain_text("A body may be 1 MiB at most")
    page.clock.install()
    page.get_by_role("button", name="Discard").click()
    expect(page.locator(".pending .fate")).to_contain_text("discarded")
    page.clock.fast_forward(11_000)
    expect(page.locator(".pending")).to_have_count(0)
    expect_answer(page)


def test_a_hidden_tab_lets_go_of_its_stream_and_catches_up_when_it_is_seen(page: Page) -> None:
    start_counting(page)
    with page.expect_event("requestfailed", lambda request: request.url.endswith("/events")):
        set_hidden(page, True)

    with page.expect_response("**/events") as resumed:
        set_hidden(page, False)

    assert int(resumed.value.request.headers["last-event-id"]) > 0
    stop_button(page).click()
    expect(chips(page)).to_have_text("stopped by you")


def set_hidden(page: Page, is_hidden: bool) -> None:
    page.evaluate(
        "is_hidden => { Object.defineProperty(document, 'hidden', {value: is_hidden, configurable: true});"
        " document.dispatchEvent(new Event('visibilitychange')); }",
        is_hidden,
    )


def test_when_the_server_dies_the_page_reconnects_and_shows_what_became_of_the_turn(
    new_context: NewContext, own_server: ChatServer
) -> None:
    page = new_context().new_page()
    page.goto(own_server.address)
    start_counting(page)

    own_server.kill()
    expect(page.get_by_text("The connection was lost")).to_be_visible()
    own_server.start()

    expect(chips(page)).to_have_text("stopped: server lost")
    expect(last_turn(page).locator(".text")).to_contain_text("t1 t2 t3")
    expect(page.get_by_text("The connection was lost")).to_be_hidden()
    expect_ended(page)
    expect_answer(page)


def test_a_resync_builds_the_conversation_anew(page: Page) -> None:
    expect_answer(page)
    frames = iter([b"event: resync\ndata: {}\n\n"])

    def resync_once(route: Route) -> None:
        body = next(frames, None)
        if body is None:
            route.continue_()
        else:
            route.fulfill(status=200, content_type="text/event-stream", body=body)

    page.route("**/events", resync_once)
    with page.expect_response(lambda response: "last-event-id" not in response.request.headers):
        page.reload()

    expect(page.locator(".turn")).to_have_count(1)
    expect(last_turn(page).locator(".text")).to_contain_text("t1 t2 t3")


# -- what the events add up to --------------------------------------------------------------------------


def test_nothing_brings_a_stopping_turn_back_to_running_and_its_end_closes_every_goal(page: Page) -> None:
    states = page.evaluate(
        """async () => {
            const { newChat, apply } = await import("/web/state.js");
            const chat = newChat();
            const at = "2026-01-01T00:00:00.000Z";
            const goal = (id) => ({id, title: id, depends_on: [], goals: [], status: "NOT_STARTED"});
            const seen = [];
            const events = [
                {type: "run_started", session_id: "s", interactive: true},
                {type: "turn_started", input: "x", number: 1},
                {type: "plan_updated", goals: [goal("a"), goal("b")]},
                {type: "goal_status", goal_id: "a", status: "IN_PROGRESS"},
                {type: "stop_requested", cause: "user"},
                {type: "text", goal_id: "a", text: "late"},
                {type: "goal_status", goal_id: "b", status: "IN_PROGRESS"},
                {type: "turn_cancelled", cause: "deadline", receipt: [], messages: []},
                {type: "text", goal_id: "a", text: " too late"},
                {type: "goal_status", goal_id: "a", status: "IN_PROGRESS"},
                {type: "turn_completed", messages: []},
            ];
            events.forEach((event, index) => {
                apply(chat, {seq: index + 1, turn_id: "t", at, ...event});
                apply(chat, {seq: index + 1, turn_id: "t", at, ...event});
                seen.push(chat.turns.get("t")?.state);
            });
            const turn = chat.turns.get("t");
            const said = (goal) => goal.parts.map((part) => part.text).join("");
            return {seen, cause: turn.cause, goals: [...turn.goals.values()].map((g) => [g.status, said(g)])};
        }"""
    )

    expected = [None, "queued", "running", "running", "stopping", "stopping", "stopping", *["cancelled"] * 4]
    assert states["seen"] == expected
    assert states["cause"] == "deadline"
    assert states["goals"] == [["CANCELLED", "late"], ["CANCELLED", ""]]


def test_a_models_text_cannot_bring_code_or_forms_into_the_page(page: Page) -> None:
    text = (
        "**bold** <img src=x onerror=alert(1)><script>alert(1)</script><form action=/x><input name=a></form>"
        "\n\n[bad](javascript:alert(1)) [good](https://example.org) ![image](http://127.0.0.1:1/x.png) one<br>two"
        "\n\n<b id=app style='color:red'>x</b>"
    )

    found = page.evaluate(
        """async (text) => {
            const { renderMarkdown } = await import("/web/markdown.js");
            const box = document.createElement("div");
            box.append(renderMarkdown(text));
            const tags = [...box.querySelectorAll("*")].map((node) => node.tagName);
            const links = [...box.querySelectorAll("[href]")].map((node) => node.getAttribute("href"));
            return {tags, links, text: box.textContent};
        }""",
        text,
    )

    assert set(found["tags"]) == {"P", "STRONG", "BR", "A"}
    assert found["links"] == ["https://example.org"]
    assert "<script>alert(1)</script>" in found["text"]  # shown as it was written
