"""A run that is to be resumed goes on by itself when its server was lost, and not for ever."""

from collections.abc import Callable
from pathlib import Path

import pytest

from core.cancellation import Cause, CauseWord
from core.engine.recovery import settle_lost_turns
from core.session.records import StopOrder, TurnOutcome
from core.session.stop_moves import request_stop
from core.session.turn_end import MAX_LOSSES, end_turn
from core.session.turns import begin_turn
from tests.support.core_kit import Store, open_store
from tests.support.five_checks import five_checks
from tests.support.going_back import HalfDone, of_type
from tests.support.model_server import ModelServer, script
from tests.support.plans import say_done, seen_at, start_silent
from tests.support.servers import ServerProcess

pytestmark = pytest.mark.spread(2)

#: How a server ends, and what its turns are told.
ENDS: dict[str, tuple[Callable[[ServerProcess], object], str]] = {
    "killed": (ServerProcess.kill, "server_lost"),
    "told to end": (ServerProcess.terminate, "shutdown"),
}
each_end = pytest.mark.parametrize("how", ENDS)


@each_end
def test_an_interactive_and_a_batch_run_go_on_by_themselves_and_ask_for_nothing_twice(
    own: ServerProcess, models: ModelServer, key: str, how: str
) -> None:
    end, cause = ENDS[how]
    plans = {True: HalfDone(f"{key}-i"), False: HalfDone(f"{key}-b")}
    runs = [plan.start(own.api(), interactive=kind, on_server_lost="resume") for kind, plan in plans.items()]
    end(own)
    models.wait_open(0, key=f"{key}-i-half")
    own.start()
    for old, (is_interactive, plan) in zip(runs, plans.items(), strict=True):
        run = seen_at(own, old)
        assert run.wait_parked() == ("awaiting_input" if is_interactive else "completed")
        plan.check_whole(run, models)
        (resumed,) = of_type(run, "turn_resumed")
        assert (resumed["resumes"], resumed["turn_id"]) == (run.first_turn, run.view()["turn_id"])
        assert [event["cause"] for event in of_type(run, "turn_cancelled")] == [cause]
        assert [each["turn_id"] for each in run.api.get(f"{run.path}/receipts")["receipts"]] == [run.first_turn]
        five_checks(run, models, plan.key)


@each_end
def test_a_run_that_is_to_be_parked_is_not_resumed(
    own: ServerProcess, models: ModelServer, key: str, how: str
) -> None:
    run = start_silent(own.api(), models, key, on_server_lost="park")
    batch = start_silent(own.api(), models, f"{key}-b", interactive=False)
    ENDS[how][0](own)
    own.start()
    run, batch = seen_at(own, run), seen_at(own, batch)
    assert (run.state, batch.state) == ("awaiting_input", "failed")
    assert of_type(run, "turn_resumed") + of_type(batch, "turn_resumed") == []
    assert len(models.calls(key=key)) == 1
    five_checks(run, models, key)
    five_checks(batch, models, f"{key}-b")


def test_a_turn_that_was_stopped_by_its_user_before_the_kill_is_not_resumed(
    own: ServerProcess, models: ModelServer, key: str
) -> None:
    run = start_silent(own.api(), models, key, cancel="deaf", on_server_lost="resume")
    assert run.cancel()["stopped"] is True
    own.kill()
    own.start()
    run = seen_at(own, run)
    assert run.wait_parked() == "awaiting_input"
    assert of_type(run, "turn_resumed") == []
    assert [event["cause"] for event in of_type(run, "turn_cancelled")] == ["user"]
    five_checks(run, models, key)


def test_a_turn_that_was_lost_while_planning_plans_anew(own: ServerProcess, models: ModelServer, key: str) -> None:
    line = f"{script('busy', on='plan', times=1, retry_after_s=60, key=key)}\n{say_done(f'{key}-goal')}"
    run = own.api().start(line, planning="auto", on_server_lost="resume")
    run.wait_event("retry")
    own.kill()
    own.start()
    run = seen_at(own, run)
    run.wait_event("turn_completed")
    assert run.wait_parked() == "awaiting_input"
    assert [call.must_call is not None for call in models.calls(key=key)] == [True, True]
    five_checks(run, models, key)


def test_messages_that_waited_come_after_the_turn_that_is_resumed(
    own: ServerProcess, models: ModelServer, key: str
) -> None:
    run = own.api().start(script("busy", times=1, retry_after_s=60, key=key), on_server_lost="resume")
    run.wait_event("retry")
    message = run.say(f"{say_done(key)}\nwaited")["message_id"]
    own.kill()
    own.start()
    run = seen_at(own, run)
    delivered = run.wait_event("message_delivered", message_id=message)
    run.wait_event("turn_completed", turn_id=delivered["turn_id"])
    ends = [event["type"] for event in of_type(run, "turn_cancelled", "turn_completed")]
    assert ends == ["turn_cancelled", "turn_completed", "turn_completed"]
    five_checks(run, models, key)


# -- not for ever --------------------------------------------------------------------------------


def _lose(store: Store, run_id: str) -> bool:
    """The turn begins, and its server is lost; whether it was taken up again."""
    assert store.decide(lambda tx: begin_turn(tx, run_id)) is None
    return bool(settle_lost_turns(store.writer))


@pytest.mark.parametrize(("interactive", "state"), [(True, "awaiting_input"), (False, "failed")])
def test_a_turn_that_takes_its_server_down_is_resumed_three_times_and_then_no_more(
    tmp_path: Path, interactive: bool, state: str
) -> None:
    with open_store(tmp_path) as store:
        run_id = store.start(on_server_lost="resume", interactive=interactive).run_id
        assert [_lose(store, run_id) for _ in range(MAX_LOSSES)] == [True] * MAX_LOSSES
        assert store.run(run_id)["state"] == "queued"
        assert _lose(store, run_id) is False
        assert store.run(run_id)["state"] == state
        assert [event.type for event in store.events(run_id)].count("turn_resumed") == MAX_LOSSES == 3
        assert settle_lost_turns(store.writer) == []


def test_a_turn_that_was_not_begun_when_its_server_was_lost_is_simply_begun(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        start = store.start(on_server_lost="resume")
        for _ in range(MAX_LOSSES + 2):
            (again,) = settle_lost_turns(store.writer)
            assert again == start
        assert "turn_resumed" not in [event.type for event in store.events(start.run_id)]


def test_losses_are_counted_in_a_row(tmp_path: Path) -> None:
    shutdown = StopOrder(Cause(CauseWord.SHUTDOWN))
    with open_store(tmp_path) as store:
        run_id = store.start(on_server_lost="resume").run_id
        assert [_lose(store, run_id) for _ in range(MAX_LOSSES)] == [True] * MAX_LOSSES
        store.decide(lambda tx: begin_turn(tx, run_id))
        turn_id = store.run(run_id)["turn_id"]
        store.decide(lambda tx: request_stop(tx, run_id, turn_id, shutdown))
        outcome = TurnOutcome("cancelled", [], shutdown)
        assert store.decide(lambda tx: end_turn(tx, run_id, turn_id, outcome))[1] is not None
        assert [_lose(store, run_id) for _ in range(MAX_LOSSES + 1)] == [True] * MAX_LOSSES + [False]
