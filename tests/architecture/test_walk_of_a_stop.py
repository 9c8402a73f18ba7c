"""The newcomer's page names only what exists: every word in code type on it is a file, a name, a route or a word."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from core.call import Outcome
from core.cancellation import CauseWord
from core.events import EventType
from core.plan.goal_status import GoalStatus
from core.session.run_state import RunState
from core.settings import Settings
from tests.architecture.sources import ROOT, SRC, names_in, python_files

PAGE = ROOT / "docs" / "walk_of_a_stop.md"
IN_CODE = re.compile(r"`([^`\n]+)`")
A_PATH = re.compile(r"[\w./-]+\.(py|md|toml)|PythonServer/src")
A_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
#: What is neither ours nor in our code: routes, Python's own words, a problem's code, members of an answer.
OTHER_WORDS = {
    "POST /stopplan", "POST /v1/cancel", "GET /readyz",
    "BaseException", "except Exception",
    "already_cancelled", "stopped", "detail", "stop_not_recorded",
}  # fmt: skip


def fixed_words() -> set[str]:
    """States, causes, outcomes, event types and environment variables."""
    words = {str(word) for kind in (EventType, RunState, CauseWord, Outcome, GoalStatus) for word in kind}
    return words | {name.upper() for name in Settings.model_fields} | OTHER_WORDS


def text_of_page() -> str:
    """The page without its drawing."""
    return re.sub(r"```.*?```", "", PAGE.read_text("utf-8"), flags=re.DOTALL)


def all_names() -> set[str]:
    """Every name that any module defines."""
    return {name for path in python_files() for name in names_in(path)}


def faults(text: str) -> Iterator[str]:
    """Everything in code type that does not exist, or, in a heading, is not in the file of that heading."""
    words, names = fixed_words(), all_names()
    for line in text.splitlines():
        quoted = IN_CODE.findall(line)
        files = [SRC / word for word in quoted if A_PATH.fullmatch(word)] if line.startswith("#") else []
        for word in quoted:
            if A_PATH.fullmatch(word):
                is_there = (SRC / word).exists() or (ROOT / word).exists()
            elif files and all(path.is_file() for path in files):
                is_there = any(word in names_in(path) for path in files)
            else:
                is_there = word in words or (A_NAME.fullmatch(word) is not None and word in names)
            if not is_there:
                yield word


def test_every_file_and_name_on_the_page_exists() -> None:
    assert list(faults(text_of_page())) == []


def test_the_page_names_the_whole_way() -> None:
    """The documented names of the path of a stop are all on it."""
    quoted = set(IN_CODE.findall(text_of_page()))
    documented = {
        "post_stopplan", "post_stopplan_data", "Plan.cancel_llm_requests", "Goal.get_active_goals",
        "Agent.cancel_llm_request", "GoalCancelledException", "plan_is_stopped", "set_stopped", "Plan.run",
        "POST /v1/cancel", "ChatBot2.run_turn",
    }  # fmt: skip
    assert documented - quoted == set()


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("see `core/session/tern.py`", "core/session/tern.py"),
        ("then `Turn.stopp` acts", "Turn.stopp"),
        ("the event `turn_canceled`", "turn_canceled"),
        ("## 1. `core/session/turn.py`, `Engine.stop`", "Engine.stop"),
        ("`POST /stop`", "POST /stop"),
    ],
)
def test_a_wrong_name_is_found(line: str, wrong: str) -> None:
    assert list(faults(line)) == [wrong]


@pytest.mark.parametrize("page", [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")], ids=lambda page: page.name)
def test_every_link_to_a_file_leads_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text("utf-8"))
    local = [target for target in targets if "://" not in target]
    assert [target for target in local if not (page.parent / target).exists()] == []
