"""Tools other than the shell on the chat page, and what is said of a wait or of a fallback model."""

import json
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser.chat_log import STARTED, TURN, show_log
from tests.browser.chat_page import chips, expect_ended, last_turn, send, stop_button, tool_cards
from tests.browser.conftest import ChatServer

pytestmark = [pytest.mark.browser, pytest.mark.spread(2, of="file")]

ENDED: list[dict[str, Any]] = [
    {"type": "turn_completed", "turn_id": TURN, "messages": []},
    {"type": "run_completed"},
]


def show_call(
    page: Page, server: ChatServer, name: str, arguments: dict[str, Any], content: str, is_error: bool
) -> None:
    """A run of one tool call."""
    about = {"turn_id": TURN, "goal_id": "g", "call_id": "c"}
    call = {"type": "tool_call", "name": name, "arguments": json.dumps(arguments), **about}
    result = {"type": "tool_result", "content": content, "is_error": is_error, **about}
    show_log(page, server, [*STARTED, call, result, *ENDED])


@pytest.mark.parametrize(
    ("arguments", "result", "head", "output", "note"),
    [
        (
            {"url": "https://example.org/a?b=c"},
            {"status": 200, "body": '{"found":3}', "success": True},
            ["GET", "example.org/a?b=c", "done · 200"], '{\n  "found": 3\n}', "",
        ),
        (
            {"method": "POST", "url": "http://127.0.0.1/x", "body": "a<b>", "headers": {"Content-Type": "text/plain"}},
            {"status": 404, "body": "<b>gone</b>", "success": False},
            ["POST", "http://127.0.0.1/x", "failed · 404"], "<b>gone</b>", "",
        ),
        (
            {"url": "https://slow.example.org/"},
            {"status": None, "body": "", "truncated": True, "error": "the request was ended after 5 s", "success": False},
            ["GET", "slow.example.org/", "failed"], "", "The request was ended after 5 s",
        ),
    ],
)  # fmt: skip
def test_an_http_request_is_called_by_its_method_and_address_and_ends_with_its_status(
    page: Page, server: ChatServer, arguments: dict[str, Any], result: dict[str, Any],
    head: list[str], output: str, note: str,
) -> None:  # fmt: skip
    show_call(page, server, "http_request", arguments, json.dumps(result), not result["success"])

    card = tool_cards(page)
    expect(card.locator(".tool-name, .tool-of, .state-word")).to_have_text(head)
    expect(card.locator(".tool-output")).to_have_text(output)
    expect(card.locator(".tool-note")).to_have_text(note)
    expect(card.locator(".tool-asked code")).to_have_text(arguments.get("body", ""))
    expect(card.locator("b")).to_have_count(0)


def test_a_request_that_a_stop_ended_says_stopped_and_keeps_what_had_come(page: Page, server: ChatServer) -> None:
    result = {"status": 200, "body": "half of", "truncated": True, "error": "the request was interrupted (user)"}
    content = f"cancelled by operator\n{json.dumps(result)}"

    show_call(page, server, "http_request", {"url": "https://example.org/"}, content, True)

    expect(tool_cards(page).locator(".state-word")).to_have_text("stopped")
    expect(tool_cards(page).locator(".tool-output")).to_have_text("half of")
    expect(tool_cards(page).locator(".tool-note")).to_be_hidden()


@pytest.mark.parametrize(
    ("name", "title", "of"),
    [
        ("github__search_issues", "search_issues", "github"),
        ("read_clock", "read_clock", ""),
        ("__main__", "__main__", ""),
    ],
)
def test_a_tool_of_another_server_is_called_by_its_own_name(
    page: Page, server: ChatServer, name: str, title: str, of: str
) -> None:
    show_call(page, server, name, {"query": "stop"}, "3 issues", False)

    expect(tool_cards(page).locator(".tool-name")).to_have_text(title)
    expect(tool_cards(page).locator(".tool-of")).to_have_text(of)
    expect(tool_cards(page).locator(".tool-output")).to_have_text("3 issues")


# -- waits, and fallback models ------------------------------------------------------------------------


def test_a_wait_says_how_long_and_that_stop_ends_it(page: Page) -> None:
    send(page, "/script busy retry_after_s=30 on=goal")

    retry = last_turn(page).locator(".retry:visible")
    expect(retry).to_contain_text("trying again in")
    expect(retry).to_contain_text("Stop ends the wait at once.")

    stop_button(page).click()

    expect(chips(page)).to_have_text("stopped by you")
    expect_ended(page)


def test_a_fallback_model_is_named_before_it_answers_and_still_at_the_end(page: Page, server: ChatServer) -> None:
    about = {"turn_id": TURN, "goal_id": "g"}
    retry = {
        "type": "retry", "attempt": 5, "max_attempts": 5, "wait_ms": 0, "capped": False, "reason": "HTTP 503",
        "model": "small", "fallback": True, **about,
    }  # fmt: skip
    is_over = False

    def log() -> list[dict[str, Any]]:
        return [*STARTED, retry, *([{"type": "text", "text": "Here it is.", **about}, *ENDED] if is_over else [])]

    show_log(page, server, log())
    expect(last_turn(page).locator(".retry:visible")).to_contain_text(
        "The model call failed, going on with the fallback model “small” now."
    )
    expect(last_turn(page).locator(".retry:visible")).to_contain_text("HTTP 503")

    is_over = True
    page.unroute_all()
    show_log(page, server, log())
    page.reload()  # the address is the same
    for _ in range(2):
        expect(last_turn(page)).to_have_attribute("data-state", "completed")
        expect(last_turn(page).locator(".goal .fallback")).to_have_text("The fallback model “small” has taken over.")
        expect(last_turn(page).locator(".retry:visible")).to_have_count(0)
        page.reload()
