"""Tool calls on the chat page: a card each, that shows what runs, what it says, and how it ended."""

import json
import re
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser.chat_log import STARTED, TURN, show_log
from tests.browser.chat_page import (
    chips,
    expect_answer,
    expect_ended,
    last_turn,
    run_in,
    send,
    shell_script,
    stop_button,
    tool_cards,
)
from tests.browser.conftest import ChatServer, NewContext

pytestmark = [pytest.mark.browser, pytest.mark.spread(2, of="file")]

# -- a command ---------------------------------------------------------------------------------------


def test_a_command_shows_its_output_live_and_after_a_stop_nothing_of_it_is_pending_also_not_after_a_reload(
    page: Page, key: str
) -> None:
    command = "echo begin; echo 'oh no' >&2; sleep 600"
    send(page, shell_script(key, command))

    card = tool_cards(page)
    expect(card.locator(".tool-output")).to_have_text("begin\noh no\n")
    expect(card.locator(".tool-output .stderr")).to_have_text("oh no\n")
    expect(card.locator(".tool-name")).to_have_text("shell")
    expect(card.locator(".tool-asked")).to_have_text(command)
    expect(card.locator(".state-word")).to_have_text("running")
    expect(card.locator(".icon-working")).to_have_count(1)
    expect(page.locator("#progress-text")).to_contain_text("Running shell")

    stop_button(page).click()

    for _ in range(2):
        expect(chips(page)).to_have_text("stopped by you")
        expect(card).to_have_attribute("data-state", "stopped")
        expect(card.locator(".state-word")).to_have_text("stopped")
        expect(card.locator(".tool-output")).to_have_text("begin\noh no\n")
        expect(last_turn(page).locator(".receipt summary")).to_contain_text("1 tool call killed")
        expect_ended(page)
        for said_to_the_model in ("cancelled by operator", "interrupted", "exit_code"):
            expect(last_turn(page)).not_to_contain_text(said_to_the_model)
        page.reload()
    expect(chips(page)).to_have_text("stopped by you")  # the past is loaded
    expect_answer(page)


def test_each_call_has_a_card_with_its_exit_code_between_what_was_said_before_and_after(page: Page, key: str) -> None:
    send(page, shell_script(key, "echo fine", "echo wrong >&2; exit 3", text=1))

    expect(last_turn(page)).to_have_attribute("data-state", "completed")
    for _ in range(2):
        expect(tool_cards(page).locator(".state-word")).to_have_text(["done · exit 0", "failed · exit 3"])
        expect(tool_cards(page).locator(".tool-output")).to_have_text(["fine\n", "wrong\n"])
        expect(tool_cards(page).locator(".time")).to_have_text([re.compile(r"^\d+(\.\d)? s$")] * 2)
        parts = last_turn(page).locator(".parts > *")
        expect(parts).to_have_count(4)
        expect(parts.first).to_have_text("I will use a tool.")
        expect(parts.last).to_have_text("t1 t2 t3")
        expect_ended(page)
        page.reload()


def test_a_command_that_takes_too_long_says_so_and_is_no_stop_of_the_user(page: Page, key: str) -> None:
    line = json.dumps({"command": "echo begin; sleep 600", "timeout_ms": 300}, separators=(",", ":"))
    line = line.replace(" ", "\\u0020")
    send(page, f"/script toolcall key={key} on=goal name=shell arguments={line} tokens=3 interval_ms=1")

    expect(last_turn(page)).to_have_attribute("data-state", "completed")
    expect(tool_cards(page).locator(".state-word")).to_have_text("failed")
    expect(tool_cards(page).locator(".tool-note")).to_have_text("The command was ended after 0.3 s")
    expect(tool_cards(page).locator(".tool-options")).to_have_text("timeout_ms: 300")
    expect(tool_cards(page).locator(".tool-output")).to_have_text("begin\n")
    expect(chips(page)).to_have_count(0)


def test_what_a_command_prints_is_text_and_never_html(page: Page, key: str) -> None:
    tag = "<img src=x onerror=alert(1)><b>bold</b>&amp;"

    send(page, shell_script(key, f"echo '{tag}'"))

    expect(tool_cards(page).locator(".tool-output")).to_have_text(f"{tag}\n")
    expect(tool_cards(page).locator(".tool-asked")).to_have_text(f"echo '{tag}'")
    expect(tool_cards(page).locator("img, b")).to_have_count(0)


# -- long output -------------------------------------------------------------------------------------


def test_a_long_output_shows_its_end_and_can_be_opened_by_the_keyboard(page: Page, key: str) -> None:
    send(page, shell_script(key, "seq 1 300"))
    expect(last_turn(page)).to_have_attribute("data-state", "completed")
    box = tool_cards(page).locator(".tool-output")
    closed = box.bounding_box()
    assert closed is not None
    assert closed["height"] < 300
    assert box.evaluate("node => node.scrollHeight - node.scrollTop - node.clientHeight") < 2

    more = tool_cards(page).get_by_role("button", name="Show more of 300 lines")
    expect(more).to_have_attribute("aria-expanded", "false")
    more.press("Enter")

    less = tool_cards(page).get_by_role("button", name="Show less")
    expect(less).to_have_attribute("aria-expanded", "true")
    opened = box.bounding_box()
    assert opened is not None
    assert opened["height"] > closed["height"]
    less.press("Enter")
    expect(more).to_be_visible()


def test_of_a_very_long_output_the_newest_is_kept(page: Page, key: str) -> None:
    send(page, shell_script(key, "seq 1 40000; echo the end"))

    expect(last_turn(page)).to_have_attribute("data-state", "completed")
    for _ in range(2):
        box = tool_cards(page).locator(".tool-output")
        expect(box).to_contain_text("39999\n40000\nthe end\n")
        assert len(box.inner_text()) <= 60_000
        expect(tool_cards(page).locator(".tool-gone")).to_have_text(
            re.compile(r"^\d{3},\d{3} earlier characters are not shown$")
        )
        page.reload()


# -- other tools, and other ends ---------------------------------------------------------------------


def test_a_tool_that_is_no_shell_shows_its_arguments_and_its_result(page: Page, key: str) -> None:
    send(page, f'/script toolcall key={key} on=goal name=lookup arguments={{"city":"Oslo"}} tokens=3 interval_ms=1')

    expect(last_turn(page)).to_have_attribute("data-state", "completed")
    expect(tool_cards(page).locator(".tool-name")).to_have_text("lookup")
    expect(tool_cards(page).locator(".tool-asked")).to_have_text('{ "city": "Oslo" }')
    expect(tool_cards(page).locator(".state-word")).to_have_text("failed")
    expect(tool_cards(page).locator(".tool-output")).to_contain_text("there is no tool 'lookup'")


def test_a_goal_that_is_one_command_shows_its_card_and_no_json(page: Page, server: ChatServer) -> None:
    def goal(name: str, command: str) -> dict[str, Any]:
        return {"id": name, "title": name, "tool": {"name": "shell", "arguments": {"command": command}}}

    plan = {"goals": [goal("good", "echo fine"), goal("bad", "echo wrong; exit 3")]}
    run = server.ask("POST", "v1/runs", {"input": "Both, please", "plan": plan})
    page.goto(f"{server.url}#run={run['run_id']}")

    expect(last_turn(page)).to_have_attribute("data-state", "completed")
    expect(last_turn(page).locator(".plan .state-word")).to_have_text(["done", "failed"])
    expect(tool_cards(page).locator(".state-word")).to_have_text(["done · exit 0", "failed · exit 3"])
    expect(last_turn(page)).not_to_contain_text("exit_code")
    expect(last_turn(page).locator(".goal-error:visible")).to_have_count(0)


def test_a_turn_whose_only_command_failed_says_so_in_words(page: Page, server: ChatServer) -> None:
    tool = {"name": "shell", "arguments": {"command": "exit 3"}}
    run = server.ask("POST", "v1/runs", {"input": "Try", "plan": {"goals": [{"id": "a", "tool": tool}]}})
    page.goto(f"{server.url}#run={run['run_id']}")

    expect(last_turn(page).get_by_role("alert")).to_have_text("This turn failedThe command ended with exit code 3.")
    expect(tool_cards(page).locator(".state-word")).to_have_text("failed · exit 3")


def test_a_crash_of_the_server_leaves_no_card_that_spins(
    new_context: NewContext, own_server: ChatServer, key: str
) -> None:
    page = new_context().new_page()
    page.goto(own_server.address)
    send(page, shell_script(key, "echo begin; sleep 600"))
    expect(tool_cards(page).locator(".tool-output")).to_have_text("begin\n")

    own_server.kill()
    expect(page.locator("#connection")).to_be_visible()
    own_server.start()

    for _ in range(2):
        expect(chips(page)).to_have_text("stopped: server lost")
        expect(tool_cards(page)).to_have_attribute("data-state", "stopped")
        expect(tool_cards(page).locator(".tool-output")).to_have_text("begin\n")
        expect_ended(page)
        page.reload()


@pytest.mark.parametrize("end", ["turn_cancelled", "turn_failed", "turn_completed"])
def test_the_end_of_a_turn_closes_a_call_whose_result_never_came(page: Page, server: ChatServer, end: str) -> None:
    call = {"type": "tool_call", "goal_id": "g", "call_id": "c", "name": "lookup", "arguments": "{}"}
    ending = {"type": end, "messages": [], "cause": "server_lost", "receipt": [], "error": "x"}

    show_log(page, server, [*STARTED, {**call, "turn_id": TURN}, {**ending, "turn_id": TURN}, {"type": "run_failed"}])

    expect(tool_cards(page)).to_have_attribute("data-state", "stopped")
    expect_ended(page)


def test_a_small_screen_shows_a_command_and_its_output_and_nothing_sticks_out(
    new_context: NewContext, server: ChatServer, key: str
) -> None:
    page = new_context(viewport={"width": 360, "height": 640}).new_page()
    page.goto(server.address)
    send(page, shell_script(key, f"echo {'long' * 60}; sleep 600"))
    expect(tool_cards(page).locator(".tool-output")).to_contain_text("longlong")
    expect(stop_button(page)).to_be_in_viewport(ratio=1)
    assert page.evaluate("document.documentElement.scrollWidth") == 360

    stop_button(page).click()

    expect(chips(page)).to_have_count(1)
    expect(page.get_by_role("button", name="Take it out")).to_be_in_viewport(ratio=1)
    assert page.evaluate("document.documentElement.scrollWidth") == 360


# -- usage, title, and what was handed in ------------------------------------------------------------


@pytest.mark.parametrize(
    ("usage", "words"),
    [
        ((1, 1234, 5, "observed"), "1 model call · 1,234 tokens in, 5 out"),
        ((3, 9, 5, "mixed"), "3 model calls · ≈ 9 tokens in, 5 out"),
        ((2, None, 5, "estimated"), "2 model calls · ≈ 5 tokens out"),
        ((2, None, None, "estimated"), "2 model calls · tokens unknown"),
    ],
)
def test_a_turn_ends_with_what_it_used(page: Page, server: ChatServer, usage: tuple[Any, ...], words: str) -> None:
    used = dict(zip(("calls", "input_tokens", "output_tokens", "source"), usage, strict=True))
    end = {"type": "turn_completed", "turn_id": TURN, "messages": [], "usage": used}

    show_log(page, server, [*STARTED, end, {"type": "run_completed"}])

    expect(last_turn(page).locator(".usage")).to_have_text(words)


@pytest.mark.parametrize(
    ("metadata", "name"),
    [({}, "Queues compared"), ({"title": "Compare qu"}, "Queues compared"), ({"title": 7}, "Queues compared")],
)
def test_the_name_that_the_server_made_is_shown_whatever_the_run_was_called_before(
    page: Page, server: ChatServer, metadata: dict[str, Any], name: str
) -> None:
    first = {**STARTED[0], "metadata": metadata}
    end: dict[str, Any] = {"type": "turn_completed", "turn_id": TURN, "messages": [], "title": "Queues compared"}

    show_log(page, server, [first, *STARTED[1:], end, {"type": "run_completed"}])

    expect(page.locator("#title")).to_have_text(name)


def test_a_conversation_that_was_handed_in_stands_folded_above_the_first_turn(page: Page, server: ChatServer) -> None:
    messages = [
        {"role": "user", "content": "What was it?"},
        {"role": "assistant", "content": "It was **blue**."},
    ]
    run = server.ask("POST", "v1/runs", {"input": "/script trickle tokens=3", "planning": "none", "messages": messages})
    page.goto(f"{server.url}#run={run['run_id']}")
    summary = page.locator(".handed-in summary")
    expect(summary).to_have_text("2 earlier messages were handed in")
    expect(page.get_by_text("It was blue.")).to_have_count(0)

    summary.press("Enter")

    expect(page.get_by_text("What was it?")).to_be_visible()
    expect(page.get_by_text("It was blue.")).to_be_visible()
    assert run_in(page) == run["run_id"]
