"""The rows of the stop table that need no phase: stopping already, parked, ended an instant ago, over, foreign.

The phases are in ``test_stop_table.py``. A run that another replica owns is not built yet, so its row is not here.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.support.api_client import Api, Run
from tests.support.five_checks import five_checks
from tests.support.model_server import ModelServer, script
from tests.support.plans import all_events, say_done, start_silent, start_streaming
from tests.support.race_kit import Later, check_nothing_left
from tests.support.servers import LocalServer, gate

UNKNOWN = "r_01JZZZZZZZZZZZZZZZZZZZZZZZ"

each_kind = pytest.mark.parametrize("interactive", [True, False], ids=["interactive", "batch"])


@pytest.fixture(scope="module")
def shared(models: ModelServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    """One server for all rows."""
    with LocalServer(tmp_path_factory.mktemp("rows"), models.url) as server:
        yield server


@pytest.fixture
def user(shared: LocalServer, key: str) -> Iterator[Api]:
    """A user who has nothing yet."""
    api = shared.api(key)
    yield api
    api.close()
    check_nothing_left(shared)


def _go_on(key: str) -> str:
    return script("strict", key=key)


@contextmanager
def _stopping(user: Api, models: ModelServer, key: str, interactive: bool) -> Iterator[tuple[Run, dict[str, Any]]]:
    """A run whose stop was answered, and whose turn cannot come to its end; and that answer."""
    run = start_silent(user, models, key, interactive=interactive)
    with gate("turn.before_finish") as unwinding:
        first = run.cancel() if interactive else run.cancel(continue_with=_go_on(key))
        unwinding.wait_reached()
        assert (first["stopped"], first["parked"], first["state"], run.state) == (True, False, "stopping", "stopping")
        yield run, first


def _types(run: Run) -> list[str]:
    return [event["type"] for event in all_events(run)]


# -- stopping already ------------------------------------------------------------------------


@each_kind
def test_a_stop_of_a_stopping_turn_joins_it_with_the_same_receipt_and_is_recorded_once(
    user: Api, models: ModelServer, key: str, interactive: bool
) -> None:
    with _stopping(user, models, key, interactive) as (run, first):
        same: dict[str, Any] = {} if interactive else {"continue_with": _go_on(key)}
        for fields in ({}, {"reason": "again"}, {"if_turn": run.first_turn}, {"inbox": "drop"}):
            assert run.cancel(**{**same, **(fields if interactive else {"reason": "again"})}) == first
        last = run.view()["last_seq"]
        assert run.cancel(**same) == first
        assert run.view()["last_seq"] == last
    assert run.wait_parked() == ("awaiting_input" if interactive else "completed")
    kinds = _types(run)
    assert (kinds.count("stop_requested"), kinds.count("turn_cancelled")) == (1, 1)
    assert kinds.count("turn_started") == (1 if interactive else 2)
    five_checks(run, models, key)


def test_a_stopping_batch_run_still_refuses_a_stop_that_does_not_say_how_it_goes_on(
    user: Api, models: ModelServer, key: str
) -> None:
    with _stopping(user, models, key, interactive=False) as (run, _):
        last = run.view()["last_seq"]
        assert run.cancel(expect=409)["code"] == "not_interactive"
        assert run.view()["last_seq"] == last
    assert run.wait_parked() == "completed"
    five_checks(run, models, key)


@each_kind
def test_a_terminate_during_a_stop_ends_the_run_and_what_it_was_to_go_on_with_comes_back(
    user: Api, models: ModelServer, key: str, interactive: bool
) -> None:
    with _stopping(user, models, key, interactive) as (run, first):
        answer = run.terminate()
        assert (answer["stopped"], answer["turn_id"], answer["receipt"]) == (True, run.first_turn, first["receipt"])
    assert run.wait_parked() == "cancelled"
    kinds = _types(run)
    assert (kinds.count("stop_requested"), kinds.count("turn_started"), kinds[-1]) == (1, 1, "run_cancelled")
    returned = [event["text"] for event in all_events(run) if event["type"] == "message_returned"]
    assert returned == ([] if interactive else [_go_on(key)])
    five_checks(run, models, key)


@each_kind
def test_stopplan_during_a_stop_joins_it(user: Api, models: ModelServer, key: str, interactive: bool) -> None:
    with _stopping(user, models, key, interactive) as (run, first):
        answer = user.post("/stopplan")
        assert (answer["stopped"], answer["turn_id"], answer["receipt"]) == (True, run.first_turn, first["receipt"])
    assert run.wait_parked() == ("awaiting_input" if interactive else "cancelled")
    assert _types(run).count("stop_requested") == 1
    five_checks(run, models, key)


def test_what_a_batch_run_should_go_on_with_is_refused_when_the_stop_that_it_joins_ends_the_run(
    user: Api, models: ModelServer, key: str
) -> None:
    run = start_silent(user, models, key, interactive=False)
    with gate("turn.before_finish") as unwinding:
        assert run.terminate()["stopped"] is True
        unwinding.wait_reached()
        last = run.view()["last_seq"]
        assert run.cancel(expect=409, continue_with=_go_on(key))["code"] == "run_is_over"
        assert run.view()["last_seq"] == last
    assert run.wait_parked() == "cancelled"
    assert _types(run).count("turn_started") == 1
    five_checks(run, models, key)


def test_a_joined_stop_with_another_prompt_adds_it_behind_the_first(user: Api, models: ModelServer, key: str) -> None:
    second = f"{_go_on(key)}\nsecondly"
    with _stopping(user, models, key, interactive=False) as (run, first):
        for text in (second, _go_on(key), second):
            assert run.cancel(continue_with=text) == first
    assert run.wait_parked() == "completed"
    started = [event["input"] for event in all_events(run) if event["type"] == "turn_started"]
    assert started[1:] == [_go_on(key), second]
    five_checks(run, models, key)


# -- parked, or ended an instant ago ------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [("trickle", {"tokens": 1}), ("error", {"status": 400}), ("silent", {})],
    ids=["completed", "failed", "stopped"],
)
def test_a_stop_of_a_parked_run_does_nothing(
    user: Api, models: ModelServer, key: str, line: tuple[str, dict[str, int]]
) -> None:
    run = user.start(script(line[0], **line[1], key=key))
    if line[0] == "silent":
        models.wait_calls(1, key=key)
        run.cancel()
    run.wait_parked()
    last = run.view()["last_seq"]
    for fields in ({}, {"if_turn": run.first_turn}, {"wait_ms": 500}):
        answer = run.cancel(**fields)
        assert (answer["stopped"], answer["parked"], answer["receipt"]) == (False, True, [])
    assert user.post("/stopplan")["stopped"] is False
    assert run.view()["last_seq"] == last
    five_checks(run, models, key)


def test_a_terminate_of_a_parked_run_ends_it(user: Api, models: ModelServer, key: str) -> None:
    run = user.start(say_done(key))
    run.wait_parked()
    answer = run.terminate()
    assert (answer["stopped"], answer["parked"], answer["state"]) == (False, False, "cancelled")
    assert _types(run)[-1] == "run_cancelled"
    five_checks(run, models, key)


@contextmanager
def _ended_an_instant_ago(user: Api, key: str, interactive: bool) -> Iterator[Run]:
    """A run whose turn has finished, and whose end is not written yet."""
    with gate("engine.before_final_write") as decided:
        run = user.start(say_done(key), interactive=interactive)
        decided.wait_reached()
        yield run


def _ask_while_held(run: Run, ask: Callable[[], Any]) -> Later[Any]:
    """Whoever asks is on its way in when this returns."""
    with gate("engine.before_stop") as arriving:
        asked = Later(ask)
        arriving.wait_reached()
    return asked


def test_a_stop_of_a_turn_that_ended_an_instant_ago_does_nothing(user: Api, models: ModelServer, key: str) -> None:
    with _ended_an_instant_ago(user, key, interactive=True) as run:
        asked = _ask_while_held(run, run.cancel)
    answer = asked.result()
    assert (answer["stopped"], answer["parked"], answer["receipt"]) == (False, True, [])
    assert "stop_requested" not in _types(run)
    five_checks(run, models, key)


def test_a_batch_run_that_ended_an_instant_ago_does_not_go_on(user: Api, models: ModelServer, key: str) -> None:
    with _ended_an_instant_ago(user, key, interactive=False) as run:
        asked = _ask_while_held(run, lambda: run.cancel(expect=409, continue_with=_go_on(key)))
    assert asked.result()["code"] == "run_is_over"
    assert run.wait_parked() == "completed"
    assert not {"stop_requested", "message_queued"} & set(_types(run))
    five_checks(run, models, key)


def test_stopplan_for_a_batch_run_that_ended_an_instant_ago_finds_nothing(
    user: Api, models: ModelServer, key: str
) -> None:
    with _ended_an_instant_ago(user, key, interactive=False) as run:
        asked = _ask_while_held(run, lambda: user.post("/stopplan"))
    assert asked.result()["stopped"] is False
    assert run.wait_parked() == "completed"
    five_checks(run, models, key)


# -- what is refused ----------------------------------------------------------------------------


def _in_each_situation(user: Api, models: ModelServer, key: str) -> dict[str, Run]:
    parked = user.start(say_done(f"{key}-p"))
    batch_over = user.start(say_done(f"{key}-b"), interactive=False)
    ended = user.start(say_done(f"{key}-e"))
    for run in (parked, batch_over, ended):
        run.wait_parked()
    ended.terminate()
    return {
        "running": start_streaming(user, models, key),
        "running batch": start_streaming(user, models, f"{key}-batch", interactive=False),
        "parked": parked,
        "ended": ended,
        "ended batch": batch_over,
    }


OTHER_TURN = {"if_turn": "t_other"}
GO_ON = {"continue_with": "and now this"}

#: Situation, body of the stop, status, code: the first check that fails is the one that is told.
REFUSALS: list[tuple[str, dict[str, str], int, str]] = [
    ("running", OTHER_TURN, 409, "turn_is_over"),
    ("running", OTHER_TURN | GO_ON, 409, "turn_is_over"),
    ("running", GO_ON, 422, "invalid_request"),
    ("running batch", {}, 409, "not_interactive"),
    ("running batch", OTHER_TURN, 409, "turn_is_over"),
    ("running batch", OTHER_TURN | GO_ON, 409, "turn_is_over"),
    ("parked", OTHER_TURN, 409, "turn_is_over"),
    ("parked", GO_ON, 422, "invalid_request"),
    ("ended", {}, 409, "run_is_over"),
    ("ended", OTHER_TURN, 409, "run_is_over"),
    ("ended", GO_ON, 409, "run_is_over"),
    ("ended batch", {}, 409, "run_is_over"),
    ("ended batch", OTHER_TURN, 409, "run_is_over"),
    ("ended batch", GO_ON, 409, "run_is_over"),
]


def test_the_first_check_that_fails_is_told_and_nothing_changes(
    shared: LocalServer, user: Api, models: ModelServer, key: str
) -> None:
    runs = _in_each_situation(user, models, key)
    stranger = shared.api(f"not-{key}")
    before = {name: run.state for name, run in runs.items()}
    for name, fields, status, code in REFUSALS:
        run = runs[name]
        assert run.cancel(expect=status, **fields)["code"] == code, (name, fields)
        assert stranger.post(f"{run.path}/cancel", fields, expect=404)["code"] == "not_found"
        assert stranger.post(f"/v1/runs/{UNKNOWN}/cancel", fields, expect=404)["code"] == "not_found"
    for run in runs.values():
        assert stranger.post(f"{run.path}/terminate", expect=404)["code"] == "not_found"
    assert stranger.post("/stopplan")["stopped"] is False
    stranger.close()
    assert {name: run.state for name, run in runs.items()} == before
    assert not any("stop_requested" in _types(runs[name]) for name in ("parked", "ended", "ended batch"))
    for name in ("running", "running batch"):
        assert runs[name].terminate()["stopped"] is True
        five_checks(runs[name], models, key if name == "running" else f"{key}-batch")
