"""The five checks with which every stop test ends."""

from typing import Any

from tests.support.api_client import Run
from tests.support.model_server import ModelServer, script

TURN_ENDS = ("turn_completed", "turn_cancelled", "turn_failed")


def five_checks(run: Run, models: ModelServer, key: str = "", is_batch: bool = False) -> list[dict[str, Any]]:
    """Nothing is left, the state is steady, the next message works, and nothing of the old turn shows up in it.

    1. No call of this test (``key``) is open at the model server. 2. No process of the session is alive: there are
    no tools yet, so there is nothing that could have started one. 3. The state is parked or terminal, and stays so.
    4. The next message passes ``strict``. 5. No event of the old turn comes after its end. Returns all events.
    """
    state = run.wait_parked()
    models.wait_open(0, key=key)
    old_turn = run.view()["turn_id"]
    before = _all_events(run)
    _check_ends(before)
    assert run.state == state
    follow_up = run
    if is_batch or state in ("completed", "cancelled", "failed"):
        follow_up = run.api.start(script("strict", key=key or "next"), session_id=run.session_id)
    else:
        run.say(script("strict", key=key or "next"))
    after = before[-1]["seq"] if follow_up is run else 0
    events = follow_up.events(after=after)
    assert "turn_completed" in [event["type"] for event in events], _failure(events)
    assert all(event.get("turn_id") != old_turn for event in events)
    assert follow_up.state == "awaiting_input"
    whole = _all_events(run)
    _check_ends(whole)
    return whole


def _all_events(run: Run) -> list[dict[str, Any]]:
    """What is there now: the run is parked or over, so the last event is known."""
    last = run.view()["last_seq"]
    return run.events(lambda event: event["seq"] == last)


def _check_ends(events: list[dict[str, Any]]) -> None:
    """Each turn has exactly one terminal event and nothing after it; the run at most one, at the very end."""
    started = [event["turn_id"] for event in events if event["type"] == "turn_started"]
    for turn_id in started:
        of_turn = [event["type"] for event in events if event.get("turn_id") == turn_id]
        assert [kind for kind in of_turn if kind in TURN_ENDS] == of_turn[-1:], of_turn
    run_ends = [event for event in events if event["type"] in ("run_completed", "run_cancelled", "run_failed")]
    assert run_ends in ([], events[-1:])
    goals: dict[tuple[str, str], str] = {}
    for event in events:
        if event["type"] == "goal_status":
            place = (event["turn_id"], event["goal_id"])
            assert goals.get(place) not in ("COMPLETED", "FAILED", "CANCELLED"), f"{place} moved after its end"
            goals[place] = event["status"]
    assert all(status in ("COMPLETED", "FAILED", "CANCELLED") for status in goals.values()), goals


def _failure(events: list[dict[str, Any]]) -> str:
    return str([event for event in events if event["type"] in (*TURN_ENDS, "goal_status", "retry")])
