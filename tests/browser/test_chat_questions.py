"""Questions on the chat page: a card that is live while it waits, and says for good how it ended."""

from typing import Any

import pytest
from playwright.sync_api import Locator, Page, Route, expect

from tests.browser.chat_page import (
    chips,
    expect_answer,
    expect_ended,
    last_turn,
    message_box,
    questions,
    run_in,
    send,
    state_of,
    stop_button,
    waiting,
)
from tests.browser.conftest import ChatServer, NewContext
from tests.support.delegating import delegate_line, sub_goal
from tests.support.questions import ask_line

pytestmark = pytest.mark.browser

CITY = {"question": "Which **city**?", "options": ["Lisbon", "Porto"]}


def ask(page: Page, key: str, *asked: str | dict[str, Any]) -> None:
    """Have the model ask these, and wait until they are shown."""
    send(page, ask_line(key, *asked, on="goal"))
    expect(questions(page)).to_have_count(len(asked))
    for number in range(len(asked)):
        expect(state_of(questions(page).nth(number))).to_have_text("waits for you")


def expect_settled(page: Page, words: str) -> None:
    """The only question has ended so, and cannot be answered any more."""
    expect(state_of(questions(page))).to_have_text(words)
    expect(questions(page).locator("form")).to_be_hidden()
    expect(page.locator(".question button:visible, .question textarea:visible")).to_have_count(0)


def option(page: Page, name: str) -> Locator:
    return questions(page).get_by_role("button", name=name, exact=True)


def hold_answers(page: Page) -> list[Route]:
    held: list[Route] = []
    page.route("**/resolve", lambda route: held.append(route))  # noqa: PLW0108 — a builtin method is no handler
    return held


def question_id(page: Page, server: ChatServer) -> str:
    (found,) = server.ask("GET", f"v1/runs/{run_in(page)}/interrupts?status=pending")["interrupts"]
    return str(found["interrupt_id"])


# -- answering ---------------------------------------------------------------------------------------


def test_an_option_and_a_comment_answer_a_question_and_the_card_says_so_after_a_reload(page: Page, key: str) -> None:
    ask(page, key, CITY)
    for _ in range(2):
        expect(page.locator("#run-state")).to_have_text("has a question")
        expect(page.locator("#progress-text")).to_have_text("Waiting for your answer")
        assert page.title().startswith("(?) ")
        expect(questions(page).locator(".question-text strong")).to_have_text("city")
        page.reload()
        expect(option(page, "Porto")).to_be_visible()

    page.get_by_role("button", name="Add a comment").press("Enter")
    page.get_by_role("textbox", name="Comment").fill("in May")
    page.reload()
    expect(page.get_by_role("textbox", name="Comment")).to_have_value("in May")
    option(page, "Porto").press("Enter")

    for _ in range(2):
        expect(last_turn(page)).to_have_attribute("data-state", "completed")
        expect_settled(page, "answered by you")
        expect(questions(page).locator(".bubble")).to_contain_text("Porto")
        expect(questions(page)).to_contain_text("Your comment: in May")
        expect(last_turn(page).locator(".parts > .text")).to_have_text("t1 t2")
        expect(page.locator("#run-state")).to_have_text("ready")
        assert not page.title().startswith("(?)")
        expect_ended(page)
        page.reload()


def test_an_answer_in_words_survives_a_reload_while_it_is_written_and_enter_sends_it(page: Page, key: str) -> None:
    ask(page, key, {"question": "What budget?", "timeout_ms": 600_000})
    box = questions(page).get_by_role("textbox", name="Your answer")
    expect(questions(page).locator(".time")).to_have_text("expires in 10 min")
    box.fill("about 900")
    message_box(page).fill("a draft")

    page.reload()

    expect(message_box(page)).to_have_value("a draft")
    expect(box).to_have_value("about 900")
    box.press("Enter")
    expect_settled(page, "answered by you")
    expect(questions(page).locator(".bubble")).to_contain_text("about 900")
    expect(questions(page).locator(".time")).to_be_hidden()
    expect(last_turn(page)).to_have_attribute("data-state", "completed")
    expect(message_box(page)).to_have_value("a draft")


def test_of_two_questions_one_is_skipped_and_the_other_goes_on_waiting(page: Page, key: str) -> None:
    ask(page, key, CITY, "And when?")
    expect(page.locator("#progress-text")).to_have_text("2 questions wait for your answer")

    questions(page).first.get_by_role("button", name="Skip").click()

    for _ in range(2):
        expect(state_of(questions(page).first)).to_have_text("skipped by you")
        expect(state_of(questions(page).last)).to_have_text("waits for you")
        expect(page.locator("#progress-text")).to_have_text("Waiting for your answer")
        page.reload()
    page.get_by_role("button", name="Show it").press("Enter")
    expect(questions(page).last.get_by_role("textbox", name="Your answer")).to_be_focused()
    page.keyboard.type("in May")
    page.keyboard.press("Enter")
    expect(last_turn(page)).to_have_attribute("data-state", "completed")


def test_the_question_of_a_sub_agent_is_unfolded_and_can_be_answered(page: Page, key: str) -> None:
    send(page, delegate_line(key, sub_goal("scout", ask_line(f"{key}-s", CITY)), on="goal"))

    expect(option(page, "Lisbon")).to_be_visible()
    expect(page.locator("#run-state")).to_have_text("has a question")
    option(page, "Lisbon").click()

    expect(last_turn(page)).to_have_attribute("data-state", "completed")
    expect(state_of(questions(page))).to_have_text("answered by you")


def test_a_question_outlives_its_server_and_is_answered_at_the_next(
    new_context: NewContext, own_server: ChatServer, key: str
) -> None:
    page = new_context().new_page()
    page.goto(own_server.address)
    ask(page, key, CITY)
    own_server.kill()

    own_server.start()

    page.reload()
    page.goto(f"{own_server.url}#token={own_server.token}&run={run_in(page)}")
    expect(state_of(questions(page))).to_have_text("waits for you")
    option(page, "Porto").click()
    expect_settled(page, "answered by you")
    expect(last_turn(page)).to_have_attribute("data-state", "completed")
    expect(chips(page)).to_have_count(0)


# -- ends that are not an answer -----------------------------------------------------------------------


def test_a_stop_ends_the_question_for_good_and_the_next_message_works(page: Page, key: str) -> None:
    ask(page, key, CITY)

    stop_button(page).click()

    for _ in range(2):
        expect(chips(page)).to_have_text("stopped by you")
        expect_settled(page, "stopped by you")
        expect(last_turn(page).locator(".receipt summary")).to_contain_text("1 question cancelled")
        expect(page.locator("#run-state")).to_have_text("ready")
        expect_ended(page)
        page.reload()
    expect(chips(page)).to_have_count(1)  # the past is loaded
    expect_answer(page)


def test_from_the_click_on_stop_no_answer_can_be_given(page: Page, key: str) -> None:
    ask(page, key, CITY)
    held: list[Route] = []
    page.route("**/cancel", lambda route: held.append(route))  # noqa: PLW0108 — a builtin method is no handler

    with page.expect_request("**/cancel"):
        stop_button(page).click()

    expect_settled(page, "stopping")
    held[0].continue_()
    expect_settled(page, "stopped by you")


def test_an_answer_that_comes_second_is_refused_in_the_card(page: Page, server: ChatServer, key: str) -> None:
    ask(page, key, CITY)
    held = hold_answers(page)
    with page.expect_request("**/resolve"):
        option(page, "Porto").click()
    path = f"v1/runs/{run_in(page)}/interrupts/{question_id(page, server)}/resolve"
    server.ask("POST", path, {"disposition": "answered", "answer": "Lisbon"})
    expect(questions(page).locator(".bubble")).to_contain_text("Lisbon")

    held[0].continue_()

    expect(questions(page).get_by_role("alert")).to_contain_text(
        "Your answer was not taken: the question was answered before"
    )
    expect(questions(page).locator(".bubble")).not_to_contain_text("Porto")
    expect(last_turn(page)).to_have_attribute("data-state", "completed")


def test_an_answer_that_comes_when_the_time_is_over_is_refused_in_the_card(page: Page, key: str) -> None:
    held = hold_answers(page)
    ask(page, key, CITY | {"timeout_ms": 3000})
    with page.expect_request("**/resolve"):
        option(page, "Porto").click()
    expect_settled(page, "expired: nobody answered in time")

    held[0].continue_()

    expect(questions(page).get_by_role("alert")).to_contain_text("Your answer was not taken")
    expect_settled(page, "expired: nobody answered in time")
    page.reload()
    expect_settled(page, "expired: nobody answered in time")


# -- beside it -----------------------------------------------------------------------------------------


def test_a_message_that_is_no_answer_waits_while_the_question_does(page: Page, key: str) -> None:
    ask(page, key, CITY)

    send(page, "Something else")

    expect(waiting(page)).to_contain_text("Something else")
    expect(state_of(questions(page))).to_have_text("waits for you")
    option(page, "Porto").click()
    expect(page.locator(".turn")).to_have_count(2)
    expect(waiting(page)).to_have_count(0)
