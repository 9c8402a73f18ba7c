"""A terminate, or the server's shutdown, against a stop, against the end of a turn, and against a message."""

from pathlib import Path

import pytest

from tests.support.api_client import Api, in_threads
from tests.support.five_checks import five_checks
from tests.support.model_server import ModelServer, script
from tests.support.plans import start_silent
from tests.support.race_kit import Later
from tests.support.servers import LocalServer, gate, wait_until


def test_a_terminate_during_a_stop_ends_the_run(local: LocalServer, models: ModelServer, key: str) -> None:
    run = start_silent(local.api(), models, key)
    with gate("turn.before_finish") as unwinding:
        stop = run.cancel()
        unwinding.wait_reached()
        answer = run.terminate()
        assert (answer["stopped"], answer["turn_id"]) == (True, stop["turn_id"])
        assert answer["receipt"] == stop["receipt"]
    assert run.wait_parked() == "cancelled"
    types = [event["type"] for event in run.events()]
    assert types[-2:] == ["turn_cancelled", "run_cancelled"]
    assert types.count("stop_requested") == 1
    five_checks(run, models, key)


def test_a_stop_during_a_terminate_joins_it_and_the_run_ends(local: LocalServer, models: ModelServer, key: str) -> None:
    run = start_silent(local.api(), models, key)
    with gate("turn.before_finish") as unwinding:
        run.terminate()
        unwinding.wait_reached()
        assert run.cancel()["stopped"] is True
    assert run.wait_parked() == "cancelled"
    five_checks(run, models, key)


def test_a_terminate_that_is_not_recorded_yet_ends_the_run_although_a_message_waits(
    local: LocalServer, models: ModelServer, key: str
) -> None:
    run = start_silent(local.api(), models, key)
    with gate("turn.before_finish") as unwinding, gate("engine.before_stop_is_recorded") as recording:
        recording.open()
        run.cancel()
        unwinding.wait_reached()
        run.say(script("silent", key=key))
        with gate("engine.before_stop_is_recorded") as terminating:
            end = Later(lambda: Api(local.url, run.api.token).post(f"{run.path}/terminate"))
            terminating.wait_reached()
            unwinding.open()
            assert run.wait_parked() == "cancelled"
            terminating.open()
            assert end.result()["stopped"] is True
    events = run.events()
    assert [event["type"] for event in events].count("turn_started") == 1
    assert [event["text"] for event in events if event["type"] == "message_returned"] == [script("silent", key=key)]
    five_checks(run, models, key)


@pytest.mark.parametrize("point", ["engine.before_final_write", "engine.after_final_write"])
def test_a_terminate_at_the_end_of_a_turn_ends_the_run_although_a_message_starts_the_next_turn(
    local: LocalServer, models: ModelServer, key: str, point: str
) -> None:
    with gate("engine.before_final_write") as decided, gate("engine.after_final_write") as written:
        run = local.api().start(script("strict", key=key))
        decided.wait_reached()
        run.say(script("silent", key=key))
        if point == "engine.after_final_write":
            decided.open()
            written.wait_reached()
        with gate("engine.before_stop") as arriving:
            end = Later(lambda: Api(local.url, run.api.token).post(f"{run.path}/terminate"))
            if point == "engine.before_final_write":
                arriving.wait_reached()
            arriving.open()
            decided.open()
            written.open()
            end.result()
    assert run.wait_parked() == "cancelled"
    assert run.events()[-1]["type"] == "run_cancelled"
    five_checks(run, models, key)


def test_terminates_of_a_parked_run_at_the_same_moment_end_it_once_and_all_succeed(
    local: LocalServer, models: ModelServer, key: str
) -> None:
    run = local.api().start(script("strict", key=key))
    run.wait_parked()
    users = [Api(local.url, run.api.token) for _ in range(8)]
    answers = in_threads(8, lambda number: users[number].post(f"{run.path}/terminate"))
    assert {answer["state"] for answer in answers} == {"cancelled"}
    events = run.events(lambda event: event["type"] == "run_cancelled")
    assert events[-1]["seq"] == run.view()["last_seq"]
    five_checks(run, models, key)


def test_a_stop_of_a_parked_run_is_a_no_op_and_a_terminate_ends_it(
    local: LocalServer, models: ModelServer, key: str
) -> None:
    run = local.api().start(script("strict", key=key))
    run.wait_parked()
    last = run.view()["last_seq"]
    answer = run.cancel()
    assert (answer["stopped"], answer["parked"], run.view()["last_seq"]) == (False, True, last)
    assert run.terminate()["state"] == "cancelled"
    assert run.cancel(expect=409)["code"] == "run_is_over"
    five_checks(run, models, key)


# -- shutdown ------------------------------------------------------------------------------------


def test_a_stop_during_a_shutdown_joins_it_and_the_cause_stays_shutdown(
    models: ModelServer, key: str, tmp_path: Path
) -> None:
    with LocalServer(tmp_path, models.url) as local:
        run = start_silent(local.api(), models, key)
        with gate("turn.before_finish") as unwinding:
            local.runtime.begin_shutdown()
            unwinding.wait_reached()
            assert run.cancel()["stopped"] is True
        with local.main.reading():
            assert local.main.engine.wait_parked(30)
        end = run.wait_event("turn_cancelled")
        assert (end["cause"], run.state) == ("shutdown", "awaiting_input")
        events = run.events()
        assert [event["cause"] for event in events if event["type"] == "stop_requested"] == ["shutdown"]
        models.wait_open(0, key=key)
    with LocalServer(tmp_path, models.url) as local:
        run.api = local.api()
        five_checks(run, models, key)


def test_a_shutdown_during_a_stop_keeps_the_users_cause(models: ModelServer, key: str, tmp_path: Path) -> None:
    with LocalServer(tmp_path, models.url) as local:
        run = start_silent(local.api(), models, key)
        with gate("turn.before_finish") as unwinding:
            run.cancel()
            unwinding.wait_reached()
            local.runtime.begin_shutdown()
            wait_until(lambda: local.main.engine.scope.is_stopped, "the shutdown")
        assert local.main.engine.wait_parked(30)
    with LocalServer(tmp_path, models.url) as local:
        run.api = local.api()
        assert run.wait_event("turn_cancelled")["cause"] == "user"
        five_checks(run, models, key)


def test_a_message_that_was_accepted_as_the_shutdown_began_waits_for_the_next_server_or_is_stopped(
    models: ModelServer, key: str, tmp_path: Path
) -> None:
    with LocalServer(tmp_path, models.url) as local:
        with gate("engine.accepted") as accepted:
            started = Later(lambda: local.api().start(script("silent", key=key)))
            accepted.wait_reached()
            local.runtime.begin_shutdown()
            wait_until(lambda: local.main.engine.scope.is_stopped, "the shutdown")
        run = started.result()
        assert local.main.engine.wait_parked(30)
    assert models.calls(key=key) == []
    with LocalServer(tmp_path, models.url) as local:
        run.api = local.api()
        assert run.wait_event("turn_cancelled")["cause"] in ("shutdown", "server_lost")
        five_checks(run, models, key)


@pytest.mark.parametrize("route", ["/stopplan", "terminate"])
def test_a_stop_of_a_batch_run_during_a_shutdown_joins_it(
    models: ModelServer, key: str, tmp_path: Path, route: str
) -> None:
    with LocalServer(tmp_path, models.url) as local:
        run = start_silent(local.api(), models, key, interactive=False)
        with gate("turn.before_finish") as unwinding:
            local.runtime.begin_shutdown()
            unwinding.wait_reached()
            answer = run.api.post(route if route == "/stopplan" else f"{run.path}/terminate")
            assert answer["stopped"] is True
        assert local.main.engine.wait_parked(30)
    with LocalServer(tmp_path, models.url) as local:
        run.api = local.api()
        assert run.wait_event("turn_cancelled")["cause"] == "shutdown"
        assert run.wait_parked() == "cancelled"
        five_checks(run, models, key, is_batch=True)


def test_a_batch_run_that_a_shutdown_stops_has_failed_with_that_cause(
    models: ModelServer, key: str, tmp_path: Path
) -> None:
    with LocalServer(tmp_path, models.url) as local:
        run = start_silent(local.api(), models, key, interactive=False)
        local.runtime.close(30)
    with LocalServer(tmp_path, models.url) as local:
        run.api = local.api()
        end = run.events()[-1]
        assert (end["type"], end["cause"]) == ("run_failed", "shutdown")
        five_checks(run, models, key, is_batch=True)
