"""A session is taken away as JSON Lines and brought in elsewhere, and goes on there."""

from typing import Any

import pytest

from tests.support.api_client import Api, Run
from tests.support.five_checks import five_checks
from tests.support.model_server import ModelServer, script
from tests.support.plans import goal, say_done, start_plan, start_streaming
from tests.support.portable import JSON_LINES, comparable, export_session, import_session, send_import
from tests.support.problems import assert_problem
from tests.support.servers import ServerProcess

SAID = {"role": "assistant", "content": "half"}


def _without_ids(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in message.items() if name != "turn_id"} for message in messages]


def _circle(goals: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**goals[0], "depends_on": [goals[1]["id"]]}, {**goals[1], "depends_on": [goals[0]["id"]]}]


@pytest.fixture
def talked(api: Api, models: ModelServer, key: str) -> Run:
    """A run with a completed plan, a stopped turn, one that was taken out, and a message that is held."""
    run = start_plan(
        api, goal("a", say_done(key)), goal("i", goals=[goal("b", say_done(key), "a")]), text="first \U0001f642",
        messages=[{"role": "system", "content": "be kind"}, {"role": "user", "content": "once"}],
    )  # fmt: skip
    run.wait_parked()
    for is_last in (False, True):
        last = run.view()["last_seq"]
        run.say(script("trickle", tokens=2000, interval_ms=20, key=key))
        run.wait_event("text", after=last)
        if is_last:
            run.say("and then this")
        run.cancel(wait_ms=30_000, reason="enough")
        if not is_last:
            api.post(f"{run.path}/rollback")
    return run


def test_what_was_said_done_stopped_and_used_is_the_same_on_the_other_side(
    talked: Run, openai_server: ServerProcess, key: str
) -> None:
    lines = export_session(talked.api, talked.session_id)
    assert [line["type"] for line in lines] == ["session", "turn", "turn", "turn", "message"]
    copy = import_session(openai_server.api(key), lines)
    assert (copy.session_id, copy.state) == (talked.session_id, "awaiting_input")
    assert _without_ids(copy.transcript()) == _without_ids(talked.transcript())
    receipts = [run.api.get(f"{run.path}/receipts")["receipts"] for run in (talked, copy)]
    assert [each["receipt"] for each in receipts[0]] == [each["receipt"] for each in receipts[1]]
    assert [each["reason"] for each in receipts[1]] == ["enough", "enough"]
    assert copy.view()["usage"] == talked.view()["usage"]
    again = export_session(copy.api, copy.session_id)
    assert comparable(again) == comparable(lines)


def test_the_plan_and_results_of_a_turn_arrive_and_the_chat_goes_on_with_another_kind_of_provider(
    talked: Run, openai_server: ServerProcess, models: ModelServer, key: str
) -> None:
    copy = import_session(openai_server.api(key), export_session(talked.api, talked.session_id), "?session_id=elsewhere")
    first = next(event for event in copy.events() if event["type"] == "turn_started")["turn_id"]
    goals = copy.goals(first)
    assert {name: (each["status"], each["result"]) for name, each in goals.items()} == {
        "a": ("COMPLETED", "t1 t2 "), "i": ("COMPLETED", None), "b": ("COMPLETED", "t1 t2 ")
    }  # fmt: skip
    five_checks(copy, models, key)
    assert [message["content"] for message in copy.transcript()].count("and then this") == 1


def test_a_nul_that_a_model_says_is_kept_as_a_character_that_every_server_takes(
    api: Api, openai_server: ServerProcess, models: ModelServer, key: str
) -> None:
    run = api.start(script("nul", key=key))
    events = run.events()
    assert [each["text"] for each in events if each["type"] == "reasoning"] == ["hm\ufffd "]
    assert run.transcript()[-1]["content"] == "before \ufffd after"
    copy = import_session(openai_server.api(key), export_session(api, run.session_id))
    assert copy.transcript()[-1]["content"] == "before \ufffd after"
    five_checks(run, models, key)


def test_an_export_of_a_running_turn_arrives_as_stopped(
    api: Api, openai_server: ServerProcess, models: ModelServer, key: str
) -> None:
    run = start_streaming(api, models, key)
    copy = import_session(openai_server.api(key), export_session(api, run.session_id), "?session_id=in-flight")
    assert copy.transcript()[-1]["content"] == "[stopped: server_lost before any text]"
    run.cancel(wait_ms=30_000)
    five_checks(copy, models, key)


def test_a_session_is_never_mixed_with_another_and_nobody_takes_what_is_not_theirs(
    talked: Run, server: ServerProcess, key: str
) -> None:
    lines = export_session(talked.api, talked.session_id)
    assert_problem(send_import(talked.api, lines), 409, "session_exists")
    other = server.api(f"other-{key}")
    assert_problem(other.request("GET", f"/v1/sessions/{talked.session_id}/export"), 404, "not_found")
    assert_problem(send_import(other, lines), 404, "not_found")
    tied = server.api(key, session_id="tied-one")
    assert_problem(send_import(tied, lines, "?session_id=free-one"), 404, "not_found")
    reader = server.api(key, scope="runs:read")
    assert_problem(send_import(reader, lines, "?session_id=free-one"), 403, "insufficient_scope")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda lines: lines[1:], "first line"),
        (lambda lines: [lines[0], lines[0]], "first line"),
        (lambda lines: [lines[0], {**lines[1], "surprise": 1}], "line 2"),
        (lambda lines: [lines[0], {**lines[1], "state": "happy"}], "line 2"),
        (lambda lines: [lines[0], {**lines[1], "started_at": "yesterday"}], "ISO 8601"),
        (lambda lines: [lines[0], {**lines[1], "ended_at": "9999-12-31T23:00:00-12:00"}], "ISO 8601"),
        (lambda lines: [lines[0], {**lines[1], "goals": _circle(lines[1]["goals"])}], "line 2: goals wait for each other"),
        (lambda lines: [lines[0], *[lines[-1]] * 101], "101 messages"),
        (lambda lines: [lines[0], {**lines[1], "messages": [{**SAID, "stopped": True}]}], "line 2"),
        (lambda lines: [lines[0], {**lines[1], "messages": [{**SAID, "cause": "user"}]}], "line 2"),
        (lambda lines: [lines[0], {**lines[1], "history": {"messages": [{**SAID, "stopped": True}]}}], "line 2"),
        (lambda lines: [*lines[:2], {**lines[2], "input": " \n"}], "line 3: Value error, must not be blank"),
        (lambda lines: [lines[0], {**lines[-1], "text": "\t"}], "line 2: Value error, must not be blank"),
        (lambda lines: [lines[0], {**lines[1], "resumes": lines[1]["turn_id"]}], "line 2: no turn before it"),
        (lambda lines: [lines[0], {**lines[1], "resumes": lines[2]["turn_id"]}, lines[2]], "line 2: no turn before it"),
        (lambda lines: [lines[0], {**lines[1], "spec": {"goals": [{"id": "a"}]}}], "line 2: goal 'a' needs"),
        (lambda lines: [lines[0], {**lines[1], "spec": {"goals": []}}], "line 2"),
        (lambda lines: [lines[0], {**lines[1], "messages": [{"role": "user"}]}], "line 2"),
        (lambda lines: [{**lines[0], "format": 2}], "line 1"),
        (lambda lines: [], "lines"),
    ],
)
def test_what_is_no_export_is_refused_with_the_line_and_leaves_nothing(
    talked: Run, change: Any, named: str, key: str
) -> None:
    lines = change(export_session(talked.api, talked.session_id))
    answer = send_import(talked.api, lines, f"?session_id=not-{key}")
    assert_problem(answer, 422, "invalid_request")
    assert named in answer.json()["detail"]
    assert_problem(talked.api.request("GET", f"/v1/sessions/not-{key}/export"), 404, "not_found")


def test_broken_lines_are_refused_and_longer_bodies_than_elsewhere_are_taken(api: Api, key: str) -> None:
    broken = api.request("POST", "/v1/sessions/import", data=b'{"type": "session"}\n{"type', headers=JSON_LINES)
    assert_problem(broken, 400, "invalid_json")
    session = {"type": "session", "format": 1, "session_id": key, "title": None, "created_at": "2026-01-01T00:00:00Z"}
    turn: dict[str, Any] = {
        "type": "turn", "turn_id": "t_1", "run_id": "r_1", "state": "completed", "input": "x" * 2_000_000,
        "messages": [{"role": "assistant", "content": "y"}], "cause": None, "reason": None, "error": None,
        "receipt": None, "usage": None, "goals": [], "note": None, "history": None, "left_out": None,
        "started_at": "2026-01-01T00:00:00Z", "ended_at": "2026-01-01T00:00:01Z",
    }  # fmt: skip
    run = import_session(api, [session, turn])
    assert [len(message["content"]) for message in run.transcript()] == [2_000_000, 1]
    empty = import_session(api, [session], f"?session_id=empty-{key}")
    for route in ("rollback", "resume", "regenerate"):
        assert_problem(api.request("POST", f"{empty.path}/{route}", json={}), 409, "turn_not_stopped")
