"""The chat page as a user sees it: what to click, and where to look."""

import json

from playwright.sync_api import Locator, Page, Route, expect

#: Four goals that talk until they are stopped: three at once, and one that waits for them.
FOUR_GOALS = (
    "Compare three ways to store a queue in SQLite. Look at how PostgreSQL does it and then weigh the risks of each."
)
#: One goal that counts ``t1 t2 …`` for a minute.
COUNTING = "/script trickle tokens=1200 interval_ms=50 on=goal"
#: One goal that says ``t1 t2 t3``.
SHORT = "/script trickle tokens=3 interval_ms=1 on=goal"


def send(page: Page, text: str) -> None:
    """Write a message and press Enter."""
    box = page.get_by_role("textbox", name="Message", exact=True)
    box.fill(text)
    box.press("Enter")


def stop_button(page: Page) -> Locator:
    """The STOP button, in any of its states."""
    return page.locator("#stop")


def chips(page: Page) -> Locator:
    """The marks of stopped turns."""
    return page.locator(".turn .chip")


def last_turn(page: Page) -> Locator:
    """The newest turn."""
    return page.locator(".turn").last


def start_counting(page: Page) -> None:
    """Send a message, and wait until its answer streams."""
    before = page.locator(".turn").count()
    send(page, COUNTING)
    expect(page.locator(".turn")).to_have_count(before + 1)
    expect(last_turn(page).locator(".text")).to_contain_text("t3")


def expect_ended(page: Page) -> None:
    """Nothing is open, and nothing spins."""
    expect(stop_button(page)).to_be_hidden()
    expect(page.locator("#transcript .icon-working, #transcript .is-live")).to_have_count(0)


def expect_answer(page: Page) -> None:
    """A further message gets its whole answer."""
    before = page.locator(".turn").count()
    send(page, SHORT)
    expect(page.locator(".turn")).to_have_count(before + 1)
    expect(last_turn(page)).to_have_attribute("data-state", "completed")
    expect(last_turn(page).locator(".text")).to_contain_text("t1 t2 t3")


def lose_first_answer(page: Page, path: str) -> list[str]:
    """The server gets the page's next request to ``path``, and its answer is lost. The bodies of all requests to it."""
    tries: list[str] = []

    def lose_it(route: Route) -> None:
        tries.append(route.request.post_data or "")
        if len(tries) == 1:
            route.fetch()
            route.abort()
        else:
            route.continue_()

    page.route(path, lose_it)
    return tries


def shell_script(key: str, *commands: str, **options: object) -> str:
    """A message whose goal calls the shell with each command at once, and then says ``t1 t2 t3``."""
    lines = [json.dumps({"command": command}, separators=(",", ":")).replace(" ", "\\u0020") for command in commands]
    words = ["/script", "toolcall", f"key={key}", "on=goal"]
    words += [word for line in lines for word in ("name=shell", f"arguments={line}")]
    chosen = {"tokens": 3, "interval_ms": 1, **options}
    return " ".join(words + [f"{name}={value}" for name, value in chosen.items()])


def tool_cards(page: Page) -> Locator:
    """The tool calls of the newest turn."""
    return last_turn(page).locator(".tool")


def ways_back(page: Page) -> Locator:
    """What the page offers to do with a turn that is over."""
    return page.locator(".ways-back button:visible")


def run_in(page: Page) -> str:
    """The id of the run that the page shows."""
    run_id: str = page.evaluate("new URLSearchParams(location.hash.slice(1)).get('run')")
    return run_id


def sub_agent(page: Page, title: str) -> Locator:
    """The row of a sub-agent, with all that is inside it."""
    return page.locator(".sub-agent", has=page.get_by_role("button", name=title, exact=True)).last


def state_of(part: Locator) -> Locator:
    """The word for the state of a sub-agent, a tool call or a goal of the plan; not of what is inside it."""
    return part.locator(":scope > .goal-row .state-word, :scope > .tool-head .state-word")


def message_box(page: Page) -> Locator:
    """Where messages are written."""
    return page.get_by_role("textbox", name="Message", exact=True)


def say(page: Page, meaning: str, text: str) -> None:
    """Send a message to the turn at work that means this, in the page's words."""
    page.get_by_role("radio", name=meaning).check()
    send(page, text)


def waiting(page: Page) -> Locator:
    """The messages above the box: those that wait, that came back, or that were not sent."""
    return page.get_by_role("list", name="Messages that wait").get_by_role("listitem")


def questions(page: Page) -> Locator:
    """The questions of the newest turn."""
    return last_turn(page).locator(".question")


def expect_working(page: Page) -> None:
    """The turn goes on, and is not being stopped."""
    expect(stop_button(page)).to_have_text("Stop")
    expect(page.locator("#run-state")).to_have_text("working")
