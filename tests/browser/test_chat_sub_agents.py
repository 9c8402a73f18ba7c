"""Sub-agents on the chat page: inside the card of the call that they work for, live, and the same after a reload."""

import re
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.chat_log import GOAL, STARTED, TURN, show_log
from tests.browser.chat_page import (
    chips,
    expect_answer,
    expect_ended,
    expect_working,
    last_turn,
    send,
    state_of,
    stop_button,
    sub_agent,
    tool_cards,
)
from tests.browser.conftest import ChatServer, NewContext
from tests.support.delegating import ENDLESS, delegate_line, sub_goal
from tests.support.model_server import script
from tests.support.plans import goal

pytestmark = [pytest.mark.browser, pytest.mark.spread(2, of="file")]

#: The newest words of a sub-agent that talks.
STREAMING = re.compile(r"^(t\d+ )*t\d+$")


def endless(key: str) -> str:
    """A sub-agent's line that streams for longer than any test."""
    return script("trickle", key=key, **ENDLESS)


def delegate_card(page: Page) -> Locator:
    """The card of the newest turn's outermost delegate call."""
    return last_turn(page).locator('.tool[data-kind="delegate"]').first


def own_text(page: Page) -> Locator:
    """What the turn itself says: not its sub-agents."""
    return last_turn(page).locator(".goals > .goal > .parts > .text")


def unfold(page: Page, title: str) -> None:
    """Show all that a sub-agent said and did."""
    button = page.get_by_role("button", name=title, exact=True)
    if button.get_attribute("aria-expanded") == "false":
        button.press("Enter")
    expect(button).to_have_attribute("aria-expanded", "true")


# -- what is shown -----------------------------------------------------------------------------------


def test_sub_agents_are_shown_inside_their_call_live_after_a_reload_and_in_a_second_browser(
    page: Page, new_context: NewContext, server: ChatServer, key: str
) -> None:
    short = script("trickle", tokens=3, interval_ms=1, key=f"{key}-s")
    goals = [sub_goal("long", endless(f"{key}-l")), sub_goal("short", short), sub_goal("after", short, "long")]
    send(page, delegate_line(key, *goals, on="goal"))
    expect(state_of(sub_agent(page, "short"))).to_have_text("done")
    other = new_context().new_page()
    other.goto(server.address)
    other.goto(page.url)

    for shown in (page, other, page):
        expect(delegate_card(shown).locator(".tool-head")).to_contain_text("Sub-agents1 of 3 done")
        expect(delegate_card(shown).locator(".sub-agents .state-word")).to_have_text(["working", "done", "waiting"])
        expect(sub_agent(shown, "long").locator(".preview")).to_have_text(STREAMING)
        expect(sub_agent(shown, "short").locator(".preview")).to_have_text("t1 t2 t3")
        expect(sub_agent(shown, "after").locator(".needs")).to_have_text("after long")
        expect(own_text(shown)).to_have_count(0)
        expect(shown.locator("#progress-text")).to_contain_text("1 of 3 sub-agents")
        expect_working(shown)
        shown.reload()

    other.get_by_role("button", name="Stop long").click()

    for shown in (other, page, page):
        expect(last_turn(shown)).to_have_attribute("data-state", "completed")
        expect(own_text(shown)).to_have_text("t1 t2")
        states = ["stopped by you", "done", "skipped"]
        expect(delegate_card(shown).locator(".sub-agents .state-word")).to_have_text(states)
        expect(delegate_card(shown).locator(".tool-output:visible")).to_have_count(0)
        expect_ended(shown)
        page.reload()
    expect(last_turn(page)).to_have_attribute("data-state", "completed")  # the past is loaded
    expect_answer(page)


def test_all_that_a_sub_agent_said_and_did_unfolds_by_the_keyboard_also_after_a_reload(page: Page, key: str) -> None:
    tool = script("toolcall", name="shell", arguments={"command": "echo fine"}, key=f"{key}-t", text=1, tokens=3)
    send(page, delegate_line(key, sub_goal("worker", tool, title="Try *it*"), on="goal"))
    expect(last_turn(page)).to_have_attribute("data-state", "completed")

    for _ in range(2):
        row = sub_agent(page, "Try *it*")
        button = row.get_by_role("button", name="Try *it*", exact=True)
        expect(button).to_have_attribute("aria-expanded", "false")
        expect(row.locator(".preview")).to_have_text("t1 t2 t3")
        expect(row.locator(".tool:visible")).to_have_count(0)
        button.press("Enter")
        expect(button).to_have_attribute("aria-expanded", "true")
        expect(row.locator(".preview:visible")).to_have_count(0)
        expect(row.locator(".parts > .text")).to_have_text(["I will use a tool.", "t1 t2 t3"])
        expect(state_of(row.locator(".tool"))).to_have_text("done · exit 0")
        expect(row.locator(".tool-output")).to_have_text("fine\n")
        row.get_by_text("task").click()
        expect(row.locator(".thoughts:visible")).to_contain_text("/script toolcall")
        button.press("Enter")
        expect(row.locator(".tool:visible")).to_have_count(0)
        page.reload()


def test_goals_that_are_no_plan_are_shown_as_they_were_asked_with_what_is_wrong(page: Page, key: str) -> None:
    send(page, delegate_line(key, sub_goal("a", "x", "nobody"), on="goal"))

    expect(last_turn(page)).to_have_attribute("data-state", "completed")
    expect(state_of(delegate_card(page))).to_have_text("failed")
    expect(delegate_card(page).locator(".tool-asked")).to_contain_text("nobody")
    expect(delegate_card(page).locator(".tool-output")).to_contain_text("the goals are no plan")
    expect(delegate_card(page).locator(".sub-agents")).to_be_hidden()


# -- stops -------------------------------------------------------------------------------------------


def test_a_sub_agent_that_is_stopped_takes_its_own_sub_agents_along_and_nobody_else(page: Page, key: str) -> None:
    inner = delegate_line(f"{key}-i", sub_goal("leaf", endless(f"{key}-f")))
    goals = [sub_goal("middle", inner), sub_goal("other", endless(f"{key}-o"))]
    send(page, delegate_line(key, *goals, on="goal"))
    expect(sub_agent(page, "leaf").locator(".preview")).to_have_text(STREAMING)  # in the tree without a click
    expect(sub_agent(page, "other").locator(".preview")).to_have_text(STREAMING)

    page.get_by_role("button", name="Stop middle").click()

    expect(state_of(sub_agent(page, "middle"))).to_have_text("stopped by you")
    expect(state_of(sub_agent(page, "leaf"))).to_have_text("stopped")
    expect(sub_agent(page, "middle").locator(".icon-working, .part-stop:visible")).to_have_count(0)
    before = sub_agent(page, "other").locator(".preview").inner_text()
    expect(sub_agent(page, "other").locator(".preview")).not_to_have_text(before)
    expect(state_of(sub_agent(page, "other"))).to_have_text("working")
    expect_working(page)

    page.get_by_role("button", name="Stop these sub-agents").click()

    for _ in range(2):
        expect(last_turn(page)).to_have_attribute("data-state", "completed")
        expect(state_of(delegate_card(page))).to_have_text("stopped by you")
        expect(state_of(sub_agent(page, "middle"))).to_have_text("stopped by you")
        expect(state_of(sub_agent(page, "other"))).to_have_text("stopped")
        expect(own_text(page)).to_have_text("t1 t2")
        expect_ended(page)
        page.reload()


def test_a_stop_of_the_turn_leaves_no_sub_agent_alive_also_not_after_a_reload(page: Page, key: str) -> None:
    inner = delegate_line(f"{key}-i", sub_goal("leaf", endless(f"{key}-f")))
    command = script("toolcall", name="shell", arguments={"command": "echo begin; sleep 600"}, key=f"{key}-c")
    goals = [
        sub_goal("middle", inner),
        sub_goal("shell", command),
        sub_goal("busy", script("busy", retry_after_s=30, key=f"{key}-b")),
        sub_goal("last", endless(f"{key}-n"), "shell"),
    ]
    send(page, delegate_line(key, *goals, on="goal"))
    expect(sub_agent(page, "leaf").locator(".preview")).to_have_text(STREAMING)
    expect(sub_agent(page, "shell").locator(".preview")).to_have_text("Running shell: echo begin; sleep 600")
    expect(sub_agent(page, "busy").locator(".preview")).to_contain_text("trying again in")
    unfold(page, "shell")
    expect(sub_agent(page, "shell").locator(".tool-output")).to_have_text("begin\n")

    stop_button(page).click()

    for _ in range(2):
        expect(chips(page)).to_have_text("stopped by you")
        expect(delegate_card(page).locator(".part-stop:visible")).to_have_count(0)
        for name in ("middle", "leaf", "shell", "busy"):
            expect(state_of(sub_agent(page, name))).to_have_text("stopped")
        expect(state_of(sub_agent(page, "last"))).to_have_text("never started")
        unfold(page, "shell")
        expect(state_of(tool_cards(page))).to_have_text(["stopped"] * 3)
        expect(last_turn(page).locator(".receipt summary")).to_contain_text("2 delegations cancelled")
        expect_ended(page)
        page.reload()
    expect(chips(page)).to_have_text("stopped by you")  # the past is loaded
    expect_answer(page)


def test_a_crash_of_the_server_leaves_no_sub_agent_that_spins(
    new_context: NewContext, own_server: ChatServer, key: str
) -> None:
    page = new_context().new_page()
    page.goto(own_server.address)
    goals = [sub_goal("one", endless(f"{key}-1")), sub_goal("two", script("trickle", key=key, tokens=1), "one")]
    send(page, delegate_line(key, *goals, on="goal"))
    expect(sub_agent(page, "one").locator(".preview")).to_have_text(STREAMING)

    own_server.kill()
    expect(page.locator("#connection")).to_be_visible()
    own_server.start()

    for _ in range(2):
        expect(chips(page)).to_have_text("stopped: server lost")
        expect(delegate_card(page).locator(".sub-agents .state-word")).to_have_text(["stopped", "never started"])
        expect_ended(page)
        page.reload()


def test_a_goal_that_is_kept_when_its_turn_is_resumed_keeps_its_sub_agents(
    page: Page, server: ChatServer, key: str
) -> None:
    short = script("trickle", tokens=3, interval_ms=1, key=f"{key}-s")
    plan = {"goals": [goal("kept", delegate_line(key, sub_goal("one", short))), goal("again", endless(f"{key}-l"))]}
    run = server.ask("POST", "v1/runs", {"input": "Both", "plan": plan})
    page.goto(f"{server.url}#run={run['run_id']}")
    expect(last_turn(page).locator('.plan li[data-goal-id="kept"] .state-word')).to_have_text("done")
    stop_button(page).click()
    page.get_by_role("button", name="Resume").click()
    expect(page.locator(".turn")).to_have_count(2)

    for _ in range(2):
        expect(last_turn(page).locator('.plan li[data-goal-id="kept"] .state-word')).to_have_text("kept")
        expect(last_turn(page).locator(".sub-agents .state-word")).to_have_text("done")
        expect(last_turn(page).locator(".sub-agents .preview")).to_have_text("t1 t2 t3")
        expect_working(page)
        page.reload()
        expect(page.locator(".turn")).to_have_count(2)
    stop_button(page).click()
    expect_ended(page)


@pytest.mark.parametrize("end", ["turn_cancelled", "turn_failed", "turn_completed"])
def test_the_end_of_a_turn_closes_sub_agents_whose_own_end_never_came(page: Page, server: ChatServer, end: str) -> None:
    inside = {**GOAL, "title": "inside", "status": "IN_PROGRESS", "started_at": "2026-11-30T02:00:00.000Z"}
    sub = {**inside, "id": "g_1", "call_id": "c"}
    events: list[dict[str, Any]] = [
        {"type": "tool_call", "goal_id": "g", "call_id": "c", "name": "delegate", "arguments": "{}"},
        {"type": "plan_updated", "goals": [{**inside, "call_id": None, "delegated": [sub]}]},
        {"type": "tool_call", "goal_id": "g_1", "call_id": "d", "name": "lookup", "arguments": "{}"},
        {"type": "stop_requested", "goal_id": "g_1", "cause": "user"},
        {"type": "text", "goal_id": "g_unknown", "text": "whose is this?"},
        {"type": end, "messages": [], "cause": "server_lost", "receipt": [], "error": "x"},
    ]

    show_log(page, server, [*STARTED, *({**each, "turn_id": TURN} for each in events), {"type": "run_failed"}])

    expect(state_of(sub_agent(page, "inside"))).to_have_text("stopped by you")
    expect(last_turn(page)).not_to_contain_text("whose is this?")
    expect_ended(page)
