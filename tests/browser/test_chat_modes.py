"""What a message means to the turn at work, on the chat page: how it is chosen, said, and given up again."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, Route, expect

from tests.browser.chat_page import (
    COUNTING,
    SHORT,
    chips,
    expect_answer,
    last_turn,
    message_box,
    say,
    send,
    shell_script,
    start_counting,
    stop_button,
    tool_cards,
    waiting,
)

pytestmark = pytest.mark.browser


def choose(page: Page, meaning: str) -> None:
    page.get_by_role("radio", name=meaning).check()


def expect_chosen(page: Page, meaning: str, button: str) -> None:
    """This is what a click means, and what it says."""
    expect(page.get_by_role("radio", name=meaning)).to_be_checked()
    expect(page.locator("#send")).to_have_text(button)


def sent_modes(page: Page) -> list[str | None]:
    """The modes of all messages to the run from now on."""
    modes: list[str | None] = []

    def note(route: Route) -> None:
        body: dict[str, Any] = json.loads(route.request.post_data or "")
        modes.append(body.get("mode"))
        route.continue_()

    page.route("**/input", note)
    return modes


def test_what_a_message_means_is_chosen_by_the_keyboard_and_holds_for_the_turn(page: Page) -> None:
    choice = page.get_by_role("group", name="What the message means to the answer at work")
    expect(choice).to_be_hidden()
    start_counting(page)
    expect_chosen(page, "After this", "Send")
    expect(page.locator("#means-explained")).to_have_text("Waits until this turn is over, then it is the next message.")

    message_box(page).press("Shift+Tab")
    page.keyboard.press("ArrowRight")

    expect_chosen(page, "Add to it", "Add to it")
    expect(page.locator("#means-explained")).to_contain_text("at its next step")
    send(page, "and this")
    expect(waiting(page)).to_have_count(1)
    expect_chosen(page, "Add to it", "Add to it")
    stop_button(page).click()
    expect(choice).to_be_hidden()
    expect(page.locator("#send")).to_have_text("Send")
    start_counting(page)
    expect_chosen(page, "After this", "Send")
    choose(page, "Correct it")
    page.reload()
    expect_chosen(page, "After this", "Send")
    stop_button(page).click()
    expect_answer(page)


@pytest.mark.parametrize(
    ("meaning", "mode", "button"), [("Correct it", "redirect", "Correct it"), ("Instead", "interrupt", "Stop and send")]
)
def test_to_cut_off_what_runs_is_chosen_for_one_message_only(page: Page, meaning: str, mode: str, button: str) -> None:
    start_counting(page)
    modes = sent_modes(page)
    choose(page, meaning)
    expect_chosen(page, meaning, button)
    message_box(page).fill(f"No\n{COUNTING}")
    page.locator("#send").click()
    expect(last_turn(page).locator(".bubble").last).to_have_text(f"No\n{COUNTING}")

    expect_chosen(page, "After this", "Send")
    send(page, SHORT)

    expect(waiting(page)).to_contain_text("it is sent when this turn is over")
    assert modes == [mode, "queue"]
    stop_button(page).click()
    expect(last_turn(page).locator(".chip")).to_have_count(1)


def test_the_choice_does_not_go_on_to_the_turn_behind(page: Page, key: str, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    send(page, shell_script(key, f"until [ -e {shlex.quote(str(gate))} ]; do sleep 0.05; done"))
    expect(tool_cards(page).locator(".state-word")).to_have_text("running")
    say(page, "After this", COUNTING)
    expect(waiting(page)).to_have_count(1)
    choose(page, "Instead")

    gate.touch()

    expect(page.locator(".turn")).to_have_count(2)
    expect_chosen(page, "After this", "Send")
    stop_button(page).click()
    expect(chips(page)).to_have_count(1)


def test_a_refused_correction_says_what_to_choose_in_the_words_of_the_page(page: Page) -> None:
    start_counting(page)
    refusal = {"code": "redirect_limit", "detail": "steer, or stop the turn"}
    page.route("**/input", lambda route: route.fulfill(status=409, json=refusal))

    say(page, "Correct it", "No")

    expect(waiting(page)).to_contain_text("choose “Add to it”, or stop the turn")
    expect(page.locator("#trouble")).to_contain_text("choose “Add to it”, or stop the turn")
    page.unroute("**/input")
    modes = sent_modes(page)
    choose(page, "Add to it")
    waiting(page).get_by_role("button", name="Try again").click()
    expect(waiting(page)).to_contain_text("waiting for the model's next step")
    assert modes == ["steer"]
    stop_button(page).click()
    expect(chips(page)).to_have_count(1)
