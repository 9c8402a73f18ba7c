"""A run whose server died: nobody waits for the dead. What was said stays, a stop tells the truth, and messages work."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.support.api_client import Api, Run, in_threads
from tests.support.five_checks import five_checks, processes_of, wait_no_process
from tests.support.model_server import ModelServer, script
from tests.support.plans import all_events, goal, say_done, seen_at, start_plan, start_silent, start_streaming
from tests.support.problems import assert_problem
from tests.support.servers import ServerProcess

pytestmark = pytest.mark.spread(2)


def _restart(server: ServerProcess, *runs: Run) -> list[Run]:
    """kill -9, a new server, and the same runs there."""
    server.kill()
    server.start()
    return [seen_at(server, run) for run in runs]


def _text_of(events: list[dict[str, Any]], turn_id: str) -> str:
    return "".join(each["text"] for each in events if each["type"] == "text" and each.get("turn_id") == turn_id)


# -- a stop of a run whose server has died ---------------------------------------------------------


@pytest.mark.parametrize("route", ["cancel", "/stopplan", "/sessions"])
def test_a_stop_of_a_run_whose_server_died_says_that_nothing_runs_and_the_next_message_works(
    own: ServerProcess, models: ModelServer, key: str, route: str
) -> None:
    run = start_streaming(own.api(key), models, key)
    (run,) = _restart(own, run)
    last = run.view()["last_seq"]
    if route == "cancel":
        answer = run.cancel()
        assert (answer["stopped"], answer["parked"], answer["state"]) == (False, True, "awaiting_input")
        assert (answer["turn_id"], answer["receipt"]) == (run.first_turn, [])
    elif route == "/stopplan":
        assert run.api.post("/stopplan")["stopped"] is False
    else:
        remote = Api(own.url, own.environment["REMOTE_SESSION_API_TOKEN"])
        assert remote.post(f"/sessions/session/{run.session_id}/stop")["stopped"] is False
    assert run.view()["last_seq"] == last, "nothing was stopped, so nothing is recorded"
    sent = run.say(say_done(key))
    assert sent["disposition"] == "started"
    assert run.wait_event("turn_completed")["turn_id"] == sent["turn_id"]
    five_checks(run, models, key)


def test_a_stop_that_names_the_lost_turn_finds_it_parked_and_one_that_comes_later_finds_it_over(
    own: ServerProcess, models: ModelServer, key: str
) -> None:
    run = start_silent(own.api(), models, key)
    (run,) = _restart(own, run)
    assert run.cancel(if_turn=run.first_turn)["parked"] is True
    run.say(script("silent", key=key))
    assert run.cancel(expect=409, if_turn=run.first_turn)["code"] == "turn_is_over"
    assert run.cancel(wait_ms=30_000)["stopped"] is True
    five_checks(run, models, key)


def test_a_stop_of_a_batch_run_whose_server_died_says_that_the_run_is_over(
    own: ServerProcess, models: ModelServer, key: str
) -> None:
    run = start_streaming(own.api(key), models, key, interactive=False)
    seen = run.events(lambda each: each["type"] == "text")
    (run,) = _restart(own, run)
    assert run.state == "failed"
    for verb in ("cancel", "terminate"):
        assert_problem(run.api.request("POST", f"{run.path}/{verb}", json={}), 409, "run_is_over")
    assert run.api.post("/stopplan")["stopped"] is False
    events = all_events(run)
    assert events[: len(seen)] == seen
    assert (events[-1]["type"], events[-1]["cause"]) == ("run_failed", "server_lost")
    five_checks(run, models, key, is_batch=True)


def test_a_terminate_of_a_run_whose_server_died_ends_it(own: ServerProcess, models: ModelServer, key: str) -> None:
    run = start_silent(own.api(), models, key)
    (run,) = _restart(own, run)
    run.terminate()
    assert run.state == "cancelled"
    assert [each["type"] for each in all_events(run)][-2:] == ["awaiting_input", "run_cancelled"]
    five_checks(run, models, key, is_batch=True)


def test_the_stop_whose_answer_the_kill_cut_off_may_be_repeated_and_is_never_recorded_twice(
    own: ServerProcess, models: ModelServer, key: str
) -> None:
    run = start_silent(own.api(), models, key, cancel="deaf")
    with ThreadPoolExecutor(1) as pool:
        stop = pool.submit(seen_at(own, run).cancel, wait_ms=30_000)
        models.wait_asked(1, key=key)
        own.kill()
        with pytest.raises(requests.ConnectionError):
            stop.result()
    own.start()
    run = seen_at(own, run)
    answer = run.cancel()
    assert (answer["stopped"], answer["parked"]) == (False, True)
    events = five_checks(run, models, key)
    ends = [each["cause"] for each in events if each["type"] == "turn_cancelled"]
    assert ends in (["user"], ["server_lost"])
    assert [each["cause"] for each in events if each["type"] == "stop_requested"] == ends


# -- everything that ran ------------------------------------------------------------------------------


def test_whatever_ran_at_the_kill_has_settled_before_the_next_server_serves(
    models: ModelServer, key: str, tmp_path: Path
) -> None:
    # The stop asks a deaf gateway for so long that it is still at it when the kill comes.
    with ServerProcess(tmp_path, models.url, CANCEL_TIMEOUT_MS="20000") as server:
        plan = [
            goal("said", say_done(f"{key}-0")),
            goal("saying", script("trickle", tokens=900, interval_ms=20, key=f"{key}-0"), "said"),
            goal("later", say_done(f"{key}-0"), "saying"),
        ]
        streaming = start_plan(server.api(), *plan)
        batch = start_streaming(server.api(), models, f"{key}-1", interactive=False)
        stopping = start_silent(server.api(), models, f"{key}-2", cancel="deaf")
        seen = streaming.events(lambda each: each["type"] == "text" and each["goal_id"] == "saying")
        with ThreadPoolExecutor(1) as pool:
            stop = pool.submit(seen_at(server, stopping).cancel, reason="enough")
            stopping.wait_event("stop_requested")
            assert [run.state for run in (streaming, batch, stopping)] == ["running", "running", "stopping"]
            server.kill()
            with pytest.raises(requests.ConnectionError):
                stop.result()
        server.start()
        runs = [seen_at(server, run) for run in (streaming, batch, stopping)]
        assert server.api().request("GET", "/readyz").status_code == 200
        assert [run.state for run in runs] == ["awaiting_input", "failed", "awaiting_input"]
        assert all_events(runs[0])[: len(seen)] == seen
        assert {name: each["status"] for name, each in runs[0].goals().items()} == {
            "said": "COMPLETED", "saying": "CANCELLED", "later": "CANCELLED"
        }  # fmt: skip
        for run, cause in zip(runs, ["server_lost", "server_lost", "user"], strict=True):
            (end,) = [each for each in all_events(run) if each["type"] == "turn_cancelled"]
            (receipt,) = run.api.get(f"{run.path}/receipts")["receipts"]
            assert (receipt["turn_id"], receipt["cause"], end["cause"]) == (run.first_turn, cause, cause)
            assert receipt["receipt"] == end["receipt"]
            assert receipt["reason"] == ("enough" if cause == "user" else end["reason"])
            assert {item["outcome"] for item in receipt["receipt"]} <= {"cancelled", "not_started"}
        assert [run.cancel()["stopped"] for run in runs if run.state != "failed"] == [False, False]
        for number, run in enumerate(runs):
            five_checks(run, models, f"{key}-{number}", is_batch=number == 1)


def test_a_turn_that_was_accepted_and_had_not_begun_at_the_kill_is_settled_like_the_others(
    models: ModelServer, key: str, tmp_path: Path
) -> None:
    with ServerProcess(tmp_path, models.url, CALL_THREADS="1", TURN_WORKERS="1") as server:
        first = start_silent(server.api(), models, key)
        behind = [server.api().start(say_done(f"{key}-b{number}")) for number in range(3)]
        runs = _restart(server, first, *behind)
        assert [run.state for run in runs] == ["awaiting_input"] * 4
        assert models.calls(key=f"{key}-b0") == []
        for number, run in enumerate(runs[1:]):
            assert run.transcript()[0]["content"] == say_done(f"{key}-b{number}")
            five_checks(run, models, f"{key}-b{number}")


def test_further_kills_change_nothing_of_what_the_first_one_left(
    own: ServerProcess, models: ModelServer, key: str
) -> None:
    run = start_streaming(own.api(), models, key)
    (run,) = _restart(own, run)
    before = all_events(run)
    for _ in range(2):
        (run,) = _restart(own, run)
        assert all_events(run) == before
    five_checks(run, models, key)


def test_the_readers_of_a_lost_server_go_on_where_they_were_and_see_each_event_once(
    own: ServerProcess, models: ModelServer, key: str
) -> None:
    run = start_streaming(own.api(), models, key)
    readers = [run.stream() for _ in range(3)]

    def read_to_the_end(number: int) -> list[dict[str, Any]]:
        with pytest.raises(requests.ConnectionError):
            for _ in readers[number]:
                pass
        return readers[number].seen

    with ThreadPoolExecutor(1) as pool:
        seen = pool.submit(in_threads, 3, read_to_the_end)
        models.wait_tokens(20, key=key)
        own.kill()
        each_saw = seen.result()
    own.start()
    run = seen_at(own, run)
    whole = all_events(run)
    for saw in each_saw:
        rest = run.events(after=saw[-1]["seq"])
        assert saw + rest == whole
    assert _text_of(whole, run.first_turn) == run.transcript()[-1]["content"]
    five_checks(run, models, key)


# -- what was said stays --------------------------------------------------------------------------------


def test_stops_of_the_first_three_turns_each_keep_their_text_over_a_restart(
    own: ServerProcess, models: ModelServer, key: str
) -> None:
    run = start_streaming(own.api(), models, f"{key}-0", tokens=900)
    said = []
    for number in range(3):
        if number:
            after = run.view()["last_seq"]
            run.say(script("trickle", tokens=900, interval_ms=5, key=f"{key}-{number}"))
            run.wait_event("text", after=after)
        models.wait_tokens(5, key=f"{key}-{number}")
        turn_id = run.cancel(wait_ms=30_000)["turn_id"]
        said.append((turn_id, _text_of(all_events(run), turn_id)))
    before = run.transcript()
    (run,) = _restart(own, run)
    assert run.transcript() == before
    answers = [message for message in run.transcript() if message["role"] == "assistant"]
    assert [(message["turn_id"], message["content"]) for message in answers] == said
    assert all(text.startswith("t1 ") for _, text in said)
    assert [(message["stopped"], message["cause"]) for message in answers] == [(True, "user")] * 3
    five_checks(run, models, f"{key}-2")
    assert [message["content"] for message in run.transcript()[1:6:2]] == [text for _, text in said]


# -- whoever only reads, stops nothing ----------------------------------------------------------------


def test_readers_that_hang_up_leave_the_run_going_and_a_stop_ends_it(
    any_server: ServerProcess, models: ModelServer, key: str
) -> None:
    run = start_streaming(any_server.api(), models, key)
    for _ in range(3):
        with run.stream() as reader:
            reader.collect_type("text")
    written = sum(call.tokens_sent for call in models.calls(key=key))
    models.wait_tokens(written + 10, key=key)
    assert run.state == "running"
    assert run.cancel(wait_ms=30_000)["parked"] is True
    five_checks(run, models, key)


@pytest.mark.parametrize("interactive", [True, False], ids=["interactive", "batch"])
def test_a_plan_whose_reader_was_to_stop_it_is_stopped_when_that_one_hangs_up_and_says_so(
    any_server: ServerProcess, models: ModelServer, key: str, interactive: bool
) -> None:
    api = any_server.api()
    goals = [goal("a", script("silent", key=key)), goal("b", script("silent", key=key)), goal("c", say_done(key), "a")]
    body = {"input": "x", "plan": {"goals": goals}, "on_disconnect": "stop", "interactive": interactive}
    session_id = f"s-{key}-{any_server.url[-5:]}"
    stream = api.request(
        "POST", "/v1/runs", json={**body, "session_id": session_id}, headers={"Accept": "text/event-stream"}, stream=True
    )
    assert stream.status_code == 201
    models.wait_open(2, key=key)
    (shown,) = api.get(f"/v1/runs?session_id={session_id}")["runs"]
    run = Run(api, shown)
    stream.close()
    models.wait_open(0, key=key)
    assert run.wait_parked() == ("awaiting_input" if interactive else "cancelled")
    assert len(models.calls(key=key)) == 2
    assert {each["cause"] for each in run.goals().values()} == {"client_gone"}
    events = five_checks(run, models, key, is_batch=not interactive)
    assert {each["cause"] for each in events if each["type"] == "stop_requested"} == {"client_gone"}


# -- what a lost server's tools have left --------------------------------------------------------------


def _shell(key: str, *commands: str) -> str:
    arguments = [json.dumps({"command": command}, separators=(",", ":")) for command in commands]
    return script("toolcall", name=["shell"] * len(commands), arguments=arguments, tokens=2, key=key)


def test_what_a_command_had_printed_is_in_its_result_and_the_model_reads_it(
    models: ModelServer, key: str, tmp_path: Path
) -> None:
    with ServerProcess(tmp_path, models.url, TOOLS_ALLOWED="shell") as server:
        run = server.api(key).start(_shell(key, "echo hi; echo oops >&2; sleep 777", "sleep 777", "echo done"))
        run.events(lambda event: event["type"] == "tool_output" and event["text"] == "oops\n")
        run.wait_event("tool_result")
        (run,) = _restart(server, run)
        talking, silent, ended = (each["content"] for each in run.transcript() if each["role"] == "tool")
        words, shown = talking.split("\n", 1)
        assert words == silent == "cancelled: server_lost"
        assert json.loads(shown) == {
            "stdout": "hi\n", "stderr": "oops\nthe command was interrupted (server_lost)", "exit_code": -1,
            "success": False, "execution_time": None, "interrupted": True,
        }  # fmt: skip
        assert json.loads(ended)["stdout"] == "done\n"
        events = all_events(run)
        results = {each["call_id"]: each["content"] for each in events if each["type"] == "tool_result"}
        called = [each["call_id"] for each in events if each["type"] == "tool_call"]
        assert [results[call_id] for call_id in called] == [talking, silent, ended]
        wait_no_process(run)
        five_checks(run, models, key)
        sent = models.calls(key=key)[-1].messages
        assert [each["content"] for each in sent if each["role"] == "tool"] == [talking, silent, ended]


def test_a_command_that_had_suspended_its_supervisor_is_ended_by_the_next_server(
    models: ModelServer, key: str, tmp_path: Path
) -> None:
    with ServerProcess(tmp_path, models.url, TOOLS_ALLOWED="shell") as server:
        run = server.api(key).start(_shell(key, "kill -STOP $PPID; echo begun; sleep 777"))
        run.wait_event("tool_output")
        events = run.events(lambda event: event["type"] == "tool_output")
        (run,) = _restart(server, run)
        assert processes_of(events) == []
        five_checks(run, models, key)
