"""Clicks that come too late, twice or by mistake on the chat page: no text is lost by them."""

import pytest
from playwright.sync_api import Locator, Page, ViewportSize, expect

from tests.browser.chat_page import (
    SHORT,
    chips,
    expect_answer,
    expect_ended,
    message_box,
    run_in,
    say,
    start_counting,
    stop_button,
    waiting,
)
from tests.browser.conftest import ChatServer

pytestmark = pytest.mark.browser

#: From now on until the turn has been stopped, each time that the page changes: click on what is at this spot by then.
#: What was hit, other than the STOP button, is in ``window.hits``.
CLICK_AT_EVERY_CHANGE = """([x, y]) => {
    window.hits = [];
    const click = (_, observer) => {
        const node = document.elementFromPoint(x, y);
        if ([...document.querySelectorAll(".turn")].at(-1).dataset.state === "cancelled") observer.disconnect();
        if (!node.closest("#stop")) {
            window.hits.push(node.textContent);
            node.click();
        }
    };
    new MutationObserver(click).observe(document.body, {subtree: true, childList: true, attributes: true});
}"""


def refuse_messages(page: Page) -> None:
    page.route("**/input", lambda route: route.fulfill(status=413, json={"detail": "It is too long"}))


def middle_of(node: Locator) -> list[float]:
    box = node.bounding_box()
    assert box is not None
    return [box["x"] + box["width"] / 2, box["y"] + box["height"] / 2]


def button(page: Page, name: str) -> Locator:
    return waiting(page).get_by_role("button", name=name)


@pytest.mark.parametrize("width", [1200, 400])
@pytest.mark.parametrize("fate", ["not sent", "waiting"])
def test_further_clicks_on_stop_take_no_message_back_and_discard_none(
    page: Page, server: ChatServer, fate: str, width: int
) -> None:
    page.set_viewport_size(ViewportSize(width=width, height=800))
    start_counting(page)
    if fate == "not sent":
        refuse_messages(page)
    say(page, "After this", SHORT)
    expect(waiting(page)).to_contain_text(fate)
    page.evaluate(CLICK_AT_EVERY_CHANGE, middle_of(stop_button(page)))

    stop_button(page).dblclick()

    expect(chips(page)).to_have_text("stopped by you")
    expect(waiting(page)).to_have_count(1)
    expect(waiting(page).locator(".bubble")).to_have_text(SHORT)
    assert not {"Discard", "Take back", "Try again"} & set(page.evaluate("window.hits"))
    expect(button(page, "Discard" if fate == "not sent" else "Take back")).to_be_visible()
    expect(message_box(page)).to_have_value("")
    expect_ended(page)
    if fate == "waiting":
        [message] = server.ask("GET", f"v1/runs/{run_in(page)}/inbox")["messages"]
        assert (message["text"], message["held"]) == (SHORT, True)


def test_the_room_of_what_has_ended_goes_after_a_moment(page: Page) -> None:
    start_counting(page)
    room = page.locator("#progress, #means").and_(page.locator(":not([hidden])"))
    expect(room).to_have_count(2)

    stop_button(page).click()

    expect(chips(page)).to_have_count(1)
    expect(room).to_have_count(0)
    expect(page.locator("#keys")).to_be_visible()
    expect_answer(page)


def test_a_discarded_text_can_be_had_back_for_a_moment(page: Page) -> None:
    page.clock.install()
    start_counting(page)
    refuse_messages(page)
    say(page, "After this", SHORT)

    button(page, "Discard").dblclick()  # the second one is at the place of Undo

    expect(waiting(page)).to_contain_text("discarded")
    button(page, "Undo").press("Enter")
    expect(waiting(page)).to_contain_text("not sent: It is too long")
    button(page, "Discard").press("Enter")
    expect(button(page, "Undo")).to_be_focused()
    page.clock.fast_forward(11_000)
    expect(waiting(page)).to_have_count(0)
    page.reload()
    expect(chips(page)).to_have_count(0)
    expect(stop_button(page)).to_be_visible()
    expect(waiting(page)).to_have_count(0)
    stop_button(page).click()
    expect(chips(page)).to_have_count(1)


def test_a_second_click_on_take_back_does_not_dismiss_the_text(page: Page) -> None:
    start_counting(page)
    say(page, "After this", SHORT)
    message_box(page).fill("something else")

    button(page, "Take back").dblclick()

    expect(waiting(page)).to_contain_text("taken back")
    expect(waiting(page).locator(".bubble")).to_have_text(SHORT)
    button(page, "Dismiss").press("Enter")
    expect(waiting(page)).to_contain_text("dismissed")
    button(page, "Undo").press("Enter")
    for _ in range(2):
        expect(waiting(page)).to_contain_text("taken back")
        expect(message_box(page)).to_have_value("something else")
        page.reload()
    button(page, "Dismiss").press("Enter")
    page.reload()
    expect(stop_button(page)).to_be_visible()
    expect(waiting(page)).to_have_count(0)
    stop_button(page).click()
    expect(chips(page)).to_have_count(1)
