"""Resume: a new turn takes over the finished goals of a stopped or failed one, and makes the others anew."""

from pathlib import Path

from tests.support.api_client import Api, in_threads
from tests.support.five_checks import five_checks
from tests.support.going_back import NOTE, HalfDone, go_back, last_call, of_type, system_of
from tests.support.model_server import ModelServer, script
from tests.support.plans import all_events, goal, say_done, seen_at, start_plan
from tests.support.servers import LocalServer, ServerProcess, gate


def _stopped_once(key: str, **options: object) -> str:
    """A line that waits at the first call, so that it can be stopped there, and is answered at the second."""
    return script("busy", times=1, retry_after_s=60, key=key, **options)


def test_a_resumed_turn_keeps_the_finished_goals_and_makes_the_others_anew(
    any_server: ServerProcess, models: ModelServer, key: str
) -> None:
    plan = HalfDone(key)
    run = plan.start(any_server.api(key))
    run.cancel(wait_ms=30_000)
    before = all_events(run)
    assert {name: each["status"] for name, each in run.goals().items()} == {
        "done": "COMPLETED", "half": "CANCELLED", "inner": "CANCELLED", "later": "CANCELLED", "last": "CANCELLED"
    }  # fmt: skip
    answer = go_back(run, "resume", if_turn=run.first_turn)
    assert answer == {"run_id": run.id, "turn_id": answer["turn_id"], "resumes": run.first_turn}
    assert answer["turn_id"] != run.first_turn
    run.wait_event("turn_completed", turn_id=answer["turn_id"])
    assert run.wait_parked() == "awaiting_input"
    plan.check_whole(run, models)
    (resumed,) = of_type(run, "turn_resumed")
    assert (resumed["turn_id"], resumed["resumes"]) == (answer["turn_id"], run.first_turn)
    assert all_events(run)[: len(before)] == before
    five_checks(run, models, key)
    assert NOTE not in system_of(last_call(models, key))  # the turn that was stopped is left out


def test_the_turn_that_was_resumed_can_still_be_looked_up(api: Api, models: ModelServer, key: str) -> None:
    run = HalfDone(key).start(api)
    run.cancel(wait_ms=30_000)
    receipts, goals = run.api.get(f"{run.path}/receipts")["receipts"], run.goals(run.first_turn)
    turn_id = go_back(run, "resume")["turn_id"]
    run.wait_event("turn_completed", turn_id=turn_id)
    run.wait_parked()
    assert run.api.get(f"{run.path}/receipts")["receipts"] == receipts
    assert receipts[0]["turn_id"] == run.first_turn
    assert run.goals(run.first_turn) == goals
    five_checks(run, models, key)


def test_the_users_message_stands_once_while_the_resumed_turn_runs(api: Api, models: ModelServer, key: str) -> None:
    run = HalfDone(key, tokens=4000).start(api)
    run.cancel(wait_ms=30_000)
    turn_id = go_back(run, "resume")["turn_id"]
    run.wait_event("text", after=run.wait_event("turn_resumed")["seq"], goal_id="half")
    assert [(each["role"], each["content"], each["turn_id"]) for each in run.transcript()] == [
        ("user", "work on this", turn_id)
    ]
    assert go_back(run, "resume", 409)["code"] == "run_is_busy"
    run.cancel()
    five_checks(run, models, key)


def test_a_stop_of_the_old_turn_does_not_reach_the_resumed_one(api: Api, models: ModelServer, key: str) -> None:
    run = HalfDone(key).start(api)
    run.cancel(wait_ms=30_000)
    turn_id = go_back(run, "resume")["turn_id"]
    assert run.cancel(expect=409, if_turn=run.first_turn)["code"] == "turn_is_over"
    run.wait_event("turn_completed", turn_id=turn_id)
    five_checks(run, models, key)


def test_a_resumed_turn_can_be_stopped_and_resumed_again(api: Api, models: ModelServer, key: str) -> None:
    keys = {name: f"{key}-{name}" for name in "abc"}
    plan = (
        goal("a", say_done(keys["a"])),
        goal("b", _stopped_once(keys["b"]), "a"),
        goal("c", _stopped_once(keys["c"]), "a", "b"),
    )
    run = start_plan(api, *plan)
    turns = [run.first_turn]
    for waiting in ("b", "c"):
        run.wait_event("retry", goal_id=waiting)
        run.cancel(wait_ms=30_000)
        turns.append(go_back(run, "resume")["turn_id"])
    run.wait_event("turn_completed", turn_id=turns[-1])
    run.wait_parked()
    assert {name: len(models.calls(key=each)) for name, each in keys.items()} == {"a": 1, "b": 2, "c": 2}
    assert system_of(last_call(models, keys["c"])).count("Result of") == 2
    assert [(event["turn_id"], event["resumes"]) for event in of_type(run, "turn_resumed")] == [
        (turns[1], turns[0]), (turns[2], turns[1])
    ]  # fmt: skip
    assert len(run.transcript()) == 2
    assert [entry["turn_id"] for entry in run.api.get(f"{run.path}/receipts")["receipts"]] == turns[:2]
    five_checks(run, models, key)


def test_a_turn_that_was_stopped_while_planning_plans_anew(
    any_server: ServerProcess, models: ModelServer, key: str
) -> None:
    two = script("plan", plan=[{"id": "x", "prompt": say_done(f"{key}-x")}, {"id": "y", "prompt": say_done(f"{key}-y")}])
    run = any_server.api(key).start(f"{script('silent', on='plan', key=key)}\n{two}", planning="auto")
    models.wait_calls(1, key=key)
    run.cancel(wait_ms=30_000)
    run.wait_parked()
    assert run.goals(run.first_turn) == {}
    turn_id = go_back(run, "resume")["turn_id"]
    calls = models.wait_calls(2, key=key)  # as deaf as before: it asked for a plan again
    assert [call.must_call is not None for call in calls] == [True, True]
    assert calls[0].messages == calls[1].messages
    assert run.cancel(wait_ms=30_000)["turn_id"] == turn_id
    five_checks(run, models, key)


def test_a_plan_that_the_model_made_is_taken_over_and_not_asked_for_again(
    api: Api, models: ModelServer, key: str
) -> None:
    plan = [
        {"id": "x", "prompt": say_done(f"{key}-x")},
        {"id": "y", "prompt": _stopped_once(f"{key}-y"), "depends_on": ["x"]},
    ]
    run = api.start(script("plan", plan=plan, key=key), planning="auto")
    run.wait_event("retry", goal_id="y")
    run.cancel(wait_ms=30_000)
    turn_id = go_back(run, "resume")["turn_id"]
    run.wait_event("turn_completed", turn_id=turn_id)
    run.wait_parked()
    assert {each: len(models.calls(key=f"{key}{each}")) for each in ("", "-x", "-y")} == {"": 1, "-x": 1, "-y": 2}
    five_checks(run, models, key)


def test_a_resumed_turn_that_is_stopped_before_it_had_a_plan_loses_no_finished_goal(
    local: LocalServer, models: ModelServer, key: str
) -> None:
    plan = HalfDone(key)
    run = plan.start(local.api())
    run.cancel(wait_ms=30_000)
    with gate("chatbot.before_planning") as held:
        second = go_back(run, "resume")["turn_id"]
        held.wait_reached()
        assert run.cancel()["turn_id"] == second
    run.wait_parked()
    third = go_back(run, "resume")["turn_id"]
    run.wait_event("turn_completed", turn_id=third)
    run.wait_parked()
    plan.check_whole(run, models)
    five_checks(run, models, key)


def test_a_goal_with_tools_is_made_anew_from_its_beginning(
    shell_server: ServerProcess, models: ModelServer, key: str, tmp_path: Path
) -> None:
    command = f"test -e {tmp_path}/f && echo again || {{ touch {tmp_path}/f; echo begun; sleep 600; }}"
    run = shell_server.api(key).start(script("toolcall", arguments={"command": command}, tokens=2, key=key))
    run.wait_event("tool_output", text="begun\n")
    run.cancel(wait_ms=30_000)
    turn_id = go_back(run, "resume")["turn_id"]
    run.wait_event("turn_completed", turn_id=turn_id)
    run.wait_parked()
    assert [each["role"] for each in run.transcript()] == ["user", "assistant", "tool", "assistant"]
    assert "again" in run.transcript()[2]["content"]
    first, second = [call.messages for call in models.calls(key=key)][:2]
    assert first == second
    five_checks(run, models, key)


def test_a_plan_that_is_made_at_the_second_attempt_is_run(api: Api, models: ModelServer, key: str) -> None:
    run = api.start(f"{_stopped_once(key, on='plan')}\n{say_done(f'{key}-goal')}", planning="auto")
    run.wait_event("retry")
    run.cancel(wait_ms=30_000)
    turn_id = go_back(run, "resume")["turn_id"]
    run.wait_event("turn_completed", turn_id=turn_id)
    run.wait_parked()
    assert [call.must_call is not None for call in models.calls(key=key)] == [True, True]
    assert run.transcript()[-1]["content"] == "t1 t2 "
    five_checks(run, models, key)


def test_a_failed_turn_can_be_resumed(api: Api, models: ModelServer, key: str) -> None:
    run = api.start(script("busy", status=400, times=1, key=key))
    run.wait_event("turn_failed")
    run.wait_parked()
    answer = go_back(run, "resume")
    assert answer["resumes"] == run.first_turn
    run.wait_event("turn_completed", turn_id=answer["turn_id"])
    run.wait_parked()
    assert len(run.transcript()) == 2
    assert "failed" not in run.transcript()[-1]
    five_checks(run, models, key)


def test_a_turn_in_which_one_goal_failed_and_another_came_to_its_end_is_not_resumed(
    api: Api, models: ModelServer, key: str
) -> None:
    run = start_plan(api, goal("bad", script("error", status=400, key=key)), goal("good", say_done(key)))
    run.wait_event("turn_completed")
    run.wait_parked()
    assert go_back(run, "resume", 409)["code"] == "turn_not_stopped"
    five_checks(run, models, key)


def test_a_goal_that_failed_before_the_stop_is_made_anew(api: Api, models: ModelServer, key: str) -> None:
    keys = f"{key}-bad", f"{key}-slow"
    plan = (goal("bad", script("busy", status=400, times=1, key=keys[0])), goal("slow", _stopped_once(keys[1])))
    run = start_plan(api, *plan)
    run.wait_event("goal_status", goal_id="bad", status="FAILED")
    run.wait_event("retry", goal_id="slow")
    run.cancel(wait_ms=30_000)
    turn_id = go_back(run, "resume")["turn_id"]
    run.wait_event("turn_completed", turn_id=turn_id)
    run.wait_parked()
    assert {each["status"] for each in run.goals().values()} == {"COMPLETED"}
    assert [len(models.calls(key=each)) for each in keys] == [2, 2]
    five_checks(run, models, key)


def test_a_resumed_turn_that_came_to_its_end_is_not_resumed_again(api: Api, models: ModelServer, key: str) -> None:
    run = api.start(_stopped_once(key))
    run.wait_event("retry")
    run.cancel(wait_ms=30_000)
    turn_id = go_back(run, "resume")["turn_id"]
    run.wait_event("turn_completed", turn_id=turn_id)
    run.wait_parked()
    assert go_back(run, "resume", 409)["code"] == "turn_not_stopped"
    assert go_back(run, "resume", 409, if_turn=run.first_turn)["code"] == "turn_is_over"
    five_checks(run, models, key)


def test_ten_resumes_at_once_are_one_turn(server: ServerProcess, models: ModelServer, key: str) -> None:
    run = server.api(key).start(_stopped_once(key) + "\n")
    run.wait_event("retry")
    run.cancel(wait_ms=30_000)
    apis = [server.api(key) for _ in range(10)]
    path = f"{run.path}/resume"
    answers = in_threads(10, lambda number: apis[number].request("POST", path, json={"if_turn": run.first_turn}))
    assert [answer.status_code for answer in answers].count(202) == 1
    refused = {answer.json()["code"] for answer in answers if answer.status_code != 202}
    assert refused <= {"turn_is_over"}
    run.wait_event("turn_completed")
    assert len(of_type(run, "turn_resumed")) == 1
    five_checks(run, models, key)


def test_messages_that_were_kept_at_the_stop_come_after_the_resumed_turn(
    api: Api, models: ModelServer, key: str
) -> None:
    run = api.start(_stopped_once(key))
    run.wait_event("retry")
    message = run.say(f"{say_done(key)}\nkept")["message_id"]
    run.cancel(wait_ms=30_000)
    turn_id = go_back(run, "resume")["turn_id"]
    delivered = run.wait_event("message_delivered", message_id=message)
    ended = run.wait_event("turn_completed", turn_id=turn_id)
    assert ended["seq"] < delivered["seq"]
    run.wait_event("turn_completed", turn_id=delivered["turn_id"])
    assert [each["content"] for each in run.transcript()][2] == f"{say_done(key)}\nkept"
    five_checks(run, models, key)


def test_a_tool_goal_that_has_run_is_not_run_again(
    shell_server: ServerProcess, models: ModelServer, key: str, tmp_path: Path
) -> None:
    tool = {"name": "shell", "arguments": {"command": f"echo ran >> {tmp_path}/ran; echo the-output"}}
    plan = ({"id": "tool", "tool": tool}, goal("answer", _stopped_once(key), "tool"))
    run = start_plan(shell_server.api(key), *plan)
    run.wait_event("retry")
    run.cancel(wait_ms=30_000)
    turn_id = go_back(run, "resume")["turn_id"]
    run.wait_event("turn_completed", turn_id=turn_id)
    run.wait_parked()
    assert (tmp_path / "ran").read_text() == "ran\n"
    assert "the-output" in system_of(last_call(models, key))
    assert run.goals()["tool"]["tool"] == tool
    five_checks(run, models, key)


def test_a_stopped_turn_can_be_resumed_after_a_kill_and_under_a_later_server(
    own: ServerProcess, models: ModelServer, key: str
) -> None:
    plan = HalfDone(key)
    run = plan.start(own.api())
    run.cancel(wait_ms=30_000)
    own.kill()
    own.start()
    run = seen_at(own, run)
    turn_id = go_back(run, "resume")["turn_id"]
    run.wait_event("turn_completed", turn_id=turn_id)
    run.wait_parked()
    plan.check_whole(run, models)
    five_checks(run, models, key)
