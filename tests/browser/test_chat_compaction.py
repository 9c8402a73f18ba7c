"""Shortening the history on the chat page: a line where it happened, and everything that was said stays."""

import pytest
from playwright.sync_api import Locator, Page, ViewportSize, expect

from tests.browser.chat_log import STARTED, TURN, show_log
from tests.browser.chat_page import (
    chips,
    expect_answer,
    expect_ended,
    expect_working,
    last_turn,
    start_counting,
    stop_button,
    ways_back,
)
from tests.browser.conftest import ChatServer

pytestmark = pytest.mark.browser

SHORTENED = "2 earlier messages are now told to the model as a summary; they stay here."


def line(page: Page) -> Locator:
    """The lines that tell of a compaction."""
    return page.locator(".compaction:visible")


def shorten(page: Page) -> None:
    page.get_by_role("button", name="Shorten history").click()


def test_shortening_leaves_a_line_and_every_message_and_can_be_taken_back(page: Page) -> None:
    for _ in range(4):
        expect(ways_back(page).filter(has_text="Shorten")).to_have_count(0)
        expect_answer(page)

    shorten(page)

    for _ in range(2):
        expect(line(page)).to_contain_text(SHORTENED)
        expect(page.locator(".turn .bubble")).to_have_count(4)
        expect(ways_back(page)).to_have_text(["Ask again"])  # there is nothing more to shorten
        line(page).get_by_text("what the model is told").click()
        expect(line(page).locator(".summary")).to_have_text("t1 t2 t3")
        expect_ended(page)
        page.reload()

    expect(line(page)).to_have_count(1)  # the past is loaded
    expect_answer(page)
    page.get_by_role("button", name="Undo").click()
    for _ in range(2):
        expect(line(page)).to_contain_text("2 earlier messages had been told to the model as a summary.")
        expect(line(page)).to_contain_text("That was taken back.")
        expect(page.get_by_role("button", name="Undo")).to_be_hidden()
        expect(ways_back(page)).to_have_text(["Ask again", "Shorten history"])
        page.reload()
    expect(page.locator(".turn .bubble")).to_have_count(5)


def test_asking_again_behind_a_shortening_is_about_the_message_before_it(page: Page) -> None:
    for _ in range(4):
        expect_answer(page)
    shorten(page)
    expect(line(page)).to_contain_text(SHORTENED)
    expect(stop_button(page)).to_be_hidden()

    page.get_by_role("button", name="Ask again").click()

    expect(page.locator(".fold-why")).to_have_text("asked again below")
    expect(last_turn(page)).to_have_attribute("data-state", "completed")
    expect(line(page)).to_contain_text(SHORTENED)


def test_a_stopped_shortening_changes_nothing_and_takes_no_other_message(page: Page) -> None:
    expect_answer(page)
    start_counting(page)  # the stand-in makes the summary in the way of the first message that is left out
    stop_button(page).click()
    expect_answer(page)
    expect_answer(page)

    shorten(page)
    expect(line(page)).to_contain_text("Shortening the history for the model…")
    expect(page.locator("#progress-text")).to_contain_text("Shortening the history")
    expect_working(page)
    expect(page.get_by_role("radio", name="Instead")).to_be_hidden()
    stop_button(page).click()

    for _ in range(2):
        expect(chips(page)).to_have_text(["stopped by you"] * 2)
        expect(last_turn(page)).to_contain_text("The history was not shortened.")
        expect(line(page)).to_have_count(0)
        expect(ways_back(page).last).to_have_text("Shorten history")
        expect_ended(page)
        page.reload()


def test_a_shortening_that_the_server_made_by_itself_stands_in_its_turn(page: Page, server: ChatServer) -> None:
    made = {
        "type": "compaction", "turn_id": TURN, "compaction_id": "k", "first": 2, "last": 14, "messages": 12,
        "summary": "What was said.", "before_tokens": 31000, "after_tokens": 2100,
    }  # fmt: skip
    end = {"type": "turn_completed", "turn_id": TURN, "messages": [{"role": "assistant", "content": "Done."}]}

    show_log(page, server, [*STARTED[:2], made, *STARTED[2:], end, {"type": "run_completed"}])

    expect(line(page)).to_contain_text("12 earlier messages are now told to the model as a summary; they stay here.")
    expect(line(page)).to_contain_text("≈ 31,000 → 2,100 tokens.")
    expect(last_turn(page).locator(".bubble")).to_have_text("Look it up")
    expect(page.get_by_role("button", name="Undo")).to_be_hidden()


@pytest.mark.parametrize("width", [1200, 400])
def test_what_a_stopped_shortening_says_stands_line_below_line(page: Page, server: ChatServer, width: int) -> None:
    page.set_viewport_size(ViewportSize(width=width, height=800))
    inbox = {"policy": "keep", "kept": ["m"], "returned": [], "withdrawn": []}
    usage = {"calls": 1, "input_tokens": 200, "output_tokens": 60, "source": "estimated"}
    begin = {"type": "turn_started", "turn_id": TURN, "input": "", "number": 1, "kind": "compaction"}
    end = {"type": "turn_cancelled", "turn_id": TURN, "cause": "user", "receipt": [], "inbox": inbox, "usage": usage}

    show_log(page, server, [STARTED[0], begin, end, {"type": "run_cancelled", "cause": "user"}])

    expect(last_turn(page).locator(".inbox-fate")).to_have_text("1 waiting message was kept.")
    kept, used = (last_turn(page).locator(name).bounding_box() for name in (".inbox-fate", ".usage"))
    assert kept is not None
    assert used is not None
    assert used["y"] >= kept["y"] + kept["height"]
