"""Compaction on request: the model gets the first exchange, a summary and the last ones; the transcript stays whole."""

import json
from typing import Any

import pytest

from tests.support.api_client import Api, Run
from tests.support.compacting import (
    SUMMARY,
    ask_compact,
    ask_next,
    compacted,
    compactions_of,
    events_of,
    start_talk,
    summary_calls,
    talk,
)
from tests.support.five_checks import check_results, five_checks
from tests.support.going_back import NOTE, go_back, of_type, system_of, texts_of
from tests.support.model_server import ModelServer, ServedCall, script
from tests.support.plans import say_done, seen_at, start_streaming
from tests.support.portable import export_session, import_session
from tests.support.problems import assert_problem
from tests.support.servers import ServerProcess


def _heading(messages: int, summary: str = SUMMARY) -> str:
    return f"Summary of the earlier part of this conversation ({messages} messages were left out):\n{summary}"


def _said(call: ServedCall) -> str:
    """All that a request says, whatever the form of its messages."""
    return json.dumps(call.messages)


def _sent(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    names = ("role", "content", "tool_calls", "tool_call_id")
    return [{name: each[name] for name in names if name in each} for each in messages]


# -- what the model gets ---------------------------------------------------------------------


def test_the_model_gets_the_first_exchange_a_summary_and_the_last_two_exchanges(
    api: Api, models: ModelServer, key: str
) -> None:
    run = start_talk(api, key)
    before = run.transcript()
    event = compacted(run)
    assert run.transcript() == before, "what was said stays"
    request = ask_next(run, models, key)
    # Question 0; questions 1 to 3, of which two used tools, are left out; question 4; the turn of the run's own.
    expected = [*before[:2], *before[14:]]
    assert [each["content"] for each in expected[::2]] == ["question 0", before[14]["content"], before[16]["content"]]
    assert before[14]["content"].startswith("question 4")
    assert [each for each in request.messages if each["role"] != "system"] == [
        *_sent(expected), {"role": "user", "content": script("strict", key=key)}
    ]  # fmt: skip
    assert system_of(request).endswith(_heading(12))
    assert (event["first"], event["last"], event["messages"], event["summary"]) == (2, 14, 12, SUMMARY)
    assert event["compaction_id"].startswith("k_")
    assert 0 < event["after_tokens"] < event["before_tokens"]
    five_checks(run, models, key)


def test_the_summary_is_asked_for_with_what_was_left_out_and_nothing_else(
    api: Api, models: ModelServer, key: str
) -> None:
    run = start_talk(api, key)
    compacted(run)
    (call,) = summary_calls(models, key)
    assert [message["role"] for message in call.messages] == ["system", "user"]
    shown = call.messages[1]["content"]
    for number in (1, 2, 3):
        assert f"user:\nquestion {number}\n" in shown
        assert f"answer {number}" in shown
    assert '[calls look with {"at": "the sky"}]' in shown
    assert "result of look:\nfound by call_3_1" in shown
    for kept in ("question 0", "question 4"):
        assert kept not in shown
    assert call.tools == []


def test_every_kind_of_provider_takes_a_compacted_history_with_tool_rounds(
    each_provider: ServerProcess, models: ModelServer, key: str
) -> None:
    run = start_talk(each_provider.api(key), key, exchanges=8)
    compacted(run)
    request = ask_next(run, models, key)
    assert "question 0" in _said(request)
    assert "question 7" in _said(request)
    assert "found by call_7_1" in _said(request)
    for number in range(1, 7):
        assert f"question {number}" not in _said(request)
        assert f"call_{number}_0" not in _said(request)
    ask_next(run, models, key)
    five_checks(run, models, key)


def test_a_chat_with_tools_of_its_own_is_compacted_between_its_turns(
    shell_server: ServerProcess, models: ModelServer, key: str
) -> None:
    line = script("toolcall", name="shell", arguments={"command": "echo found"}, rounds=2, tokens=2, key=key)
    run = shell_server.api(key).start(line)
    run.wait_parked()
    for text in (say_done(key), line, line, line, line):  # the summary's request plays the first line in it
        run.wait_event("turn_completed", turn_id=run.say(text)["turn_id"])
    said = run.transcript()
    check_results(said)
    questions = [number for number, message in enumerate(said) if message["role"] == "user"]
    assert any(message["role"] == "tool" for message in said)
    assert compacted(run)["messages"] == questions[4] - questions[1]
    request = ask_next(run, models, key)
    check_results([message for message in request.messages if message["role"] != "system"])
    kept = [*said[: questions[1]], *said[questions[4] :]]
    assert len(request.messages) == 1 + len(kept) + 1
    assert run.transcript()[: len(said)] == said
    five_checks(run, models, key)


def test_a_plan_is_made_with_the_compacted_history_and_so_is_each_of_its_goals(
    api: Api, models: ModelServer, key: str
) -> None:
    run = start_talk(api, key, planning="auto")
    compacted(run)
    models.clear(key=key)
    ask_next(run, models, key)
    planning, *_ = models.calls(key=key)
    assert planning.must_call is not None
    for call in models.calls(key=key):
        assert _heading(12) in system_of(call)
        assert "question 2" not in _said(call)
    five_checks(run, models, key)


def test_a_history_of_a_thousand_messages_is_compacted(api: Api, models: ModelServer, key: str) -> None:
    line = script("trickle", tokens=3, interval_ms=0, key=key)
    messages = [
        {"role": "assistant" if number % 2 else "user", "content": f"message {number} " * 20} for number in range(1000)
    ]
    messages[2]["content"] += f"\n{line}"
    run = api.start(script("strict", key=key), messages=messages)
    run.wait_parked()
    event = compacted(run)
    assert (event["first"], event["last"], event["messages"]) == (2, 998, 996)
    assert event["after_tokens"] * 50 < event["before_tokens"]
    request = ask_next(run, models, key)
    assert len(request.messages) == 1 + 2 + 2 + 2 + 1
    assert len(run.transcript()) == 1000 + 4
    five_checks(run, models, key)


def test_instructions_that_were_handed_in_stay_beside_the_summary(api: Api, models: ModelServer, key: str) -> None:
    messages = [{"role": "system", "content": "Speak like a sailor."}, *talk(key, 5)]
    run = api.start(script("strict", key=key), messages=messages)
    run.wait_parked()
    assert compacted(run)["messages"] == 12
    system = system_of(ask_next(run, models, key))
    assert system.index("Speak like a sailor.") < system.index(_heading(12))
    assert system.count(SUMMARY) == 1
    five_checks(run, models, key)


# -- the turn --------------------------------------------------------------------------------


def test_a_compaction_is_a_turn_of_its_own_that_says_nothing_and_is_no_part_of_the_transcript(
    api: Api, models: ModelServer, key: str
) -> None:
    run = start_talk(api, key)
    event = compacted(run)
    turn_id = event["turn_id"]
    assert run.view()["turn_id"] == turn_id != run.first_turn
    events = events_of(run, turn_id)
    assert [each["type"] for each in events] == ["turn_started", "usage", "compaction", "turn_completed"]
    assert (events[0]["kind"], events[0]["input"]) == ("compaction", "")
    assert events[-1]["messages"] == []
    assert events[-1]["usage"]["calls"] == 1
    assert turn_id not in {message["turn_id"] for message in run.transcript()}
    assert "kind" not in of_type(run, "turn_started")[0]
    five_checks(run, models, key)


def test_too_few_exchanges_are_nothing_to_compact_and_the_model_is_not_asked(
    api: Api, models: ModelServer, key: str
) -> None:
    run = start_talk(api, key, exchanges=2)
    event = compacted(run)
    assert event["compaction_id"] is None
    assert (event["first"], event["last"], event["messages"], event["summary"]) == (None, None, 0, None)
    assert event["before_tokens"] == event["after_tokens"] > 0
    assert summary_calls(models, key) == []
    ask_next(run, models, key)
    assert compacted(run)["messages"] == 5, "one exchange more, and it is enough"
    five_checks(run, models, key)


def test_a_second_compaction_goes_on_top_of_the_first(api: Api, models: ModelServer, key: str) -> None:
    run = start_talk(api, key)
    first = compacted(run)
    again = compacted(run)
    assert (again["compaction_id"], again["messages"]) == (None, 0), "nothing was said since"
    run.say(say_done(key))
    run.wait_parked()
    models.clear(key=key)
    second = compacted(run)
    assert (second["first"], second["last"]) == (first["first"], first["last"] + 2)
    (call,) = summary_calls(models, key)
    shown = call.messages[1]["content"]
    assert shown.startswith(f"summary of what came before:\n{SUMMARY}\n\nuser:\nquestion 4")
    assert "question 3" not in shown
    request = ask_next(run, models, key)
    assert system_of(request).endswith(_heading(14))
    assert "question 4" not in _said(request)
    five_checks(run, models, key)


# -- undoing ---------------------------------------------------------------------------------


def test_undoing_takes_back_the_newest_and_then_the_older_one(api: Api, models: ModelServer, key: str) -> None:
    run = start_talk(api, key)
    first = compacted(run)
    run.say(say_done(key))
    run.wait_parked()
    second = compacted(run)
    assert ask_compact(run, undo=True) == {"run_id": run.id, "undone": True}
    request = ask_next(run, models, key)
    assert system_of(request).endswith(_heading(12))
    assert "question 4" in _said(request)
    assert ask_compact(run, undo=True, if_turn=run.view()["turn_id"])["undone"] is True
    request = ask_next(run, models, key)
    assert "Summary of" not in system_of(request)
    assert "question 1" in _said(request)
    last = run.view()["last_seq"]
    assert ask_compact(run, undo=True)["undone"] is False
    assert run.view()["last_seq"] == last
    undone = [event for event in compactions_of(run) if "undone" in event]
    assert [event["undone"] for event in undone] == [second["compaction_id"], first["compaction_id"]]
    assert all("turn_id" not in event for event in undone)
    assert compacted(run)["messages"] == 18, "it can be compacted again"
    five_checks(run, models, key)


# -- going back ------------------------------------------------------------------------------


def _stopped_turn(api: Api, models: ModelServer, key: str) -> Run:
    run = start_talk(api, key)
    sent = run.say(script("trickle", tokens=4000, interval_ms=20, key=key))
    run.wait_event("text", turn_id=sent["turn_id"])
    run.cancel(wait_ms=30_000)
    return run


@pytest.mark.parametrize("names", [False, True], ids=["any", "if_turn"])
@pytest.mark.parametrize("verb", ["rollback", "resume", "regenerate"])
def test_going_back_looks_past_a_compaction_to_the_newest_turn_of_the_user(
    api: Api, models: ModelServer, key: str, verb: str, names: bool
) -> None:
    run = _stopped_turn(api, models, key)
    stopped = run.view()["turn_id"]
    assert compacted(run, if_turn=stopped)["messages"] == 14
    before = len(run.transcript())
    after = run.view()["last_seq"]
    answer = go_back(run, verb, **({"if_turn": stopped} if names else {}))
    if verb == "rollback":
        assert answer == {"run_id": run.id, "turn_id": stopped, "rolled_back": True}
        assert len(run.transcript()) == before - 2
        assert go_back(run, verb)["rolled_back"] is False
    else:
        assert answer["resumes" if verb == "resume" else "replaces"] == stopped
        run.wait_event("text", after=after)
        run.cancel(wait_ms=30_000)
        assert len(run.transcript()) == before
    request = ask_next(run, models, key)
    assert _heading(14) in system_of(request)
    assert (NOTE in system_of(request)) == (verb != "rollback")
    five_checks(run, models, key)


def test_a_compaction_of_an_imported_session_without_turns_has_nothing_to_do(
    api: Api, models: ModelServer, key: str
) -> None:
    run = start_talk(api, key)
    (session, *_) = export_session(api, run.session_id)
    other = import_session(api, [session], f"?session_id=other-{key}")
    assert compacted(other)["messages"] == 0
    answer = other.api.request("POST", f"{other.path}/resume", json={})
    assert_problem(answer, 409, "turn_not_stopped")
    five_checks(other, models, key)


# -- refusals --------------------------------------------------------------------------------


def test_a_compaction_is_refused_where_it_cannot_be(api: Api, models: ModelServer, key: str) -> None:
    run = start_talk(api, key)
    for undo in (False, True):
        answer = api.request("POST", f"{run.path}/compact", json={"if_turn": "t_other", "undo": undo})
        assert_problem(answer, 409, "turn_is_over")
        assert_problem(api.request("POST", f"{run.path}/compact", json={"undo": "yes"}), 422, "invalid_request")
    sent = run.say(script("trickle", tokens=4000, interval_ms=20, key=key))
    for undo in (False, True):
        answer = api.request("POST", f"{run.path}/compact", json={"if_turn": sent["turn_id"], "undo": undo})
        assert_problem(answer, 409, "run_is_busy")
    run.cancel(wait_ms=30_000)
    five_checks(run, models, key)
    run.terminate(wait_ms=30_000)
    for undo in (False, True):
        assert_problem(api.request("POST", f"{run.path}/compact", json={"undo": undo}), 409, "run_is_over")
    batch = start_streaming(api, models, f"{key}-batch", interactive=False)
    assert_problem(api.request("POST", f"{batch.path}/compact", json={}), 409, "not_interactive")
    batch.terminate(wait_ms=30_000)
    assert_problem(api.request("POST", "/v1/runs/r_nobody/compact", json={}), 404, "not_found")


def test_a_compaction_while_one_runs_is_refused(api: Api, models: ModelServer, key: str) -> None:
    run = start_talk(api, key, line=script("silent", key=key))
    answer = ask_compact(run)
    assert answer == {"run_id": run.id, "turn_id": run.view()["turn_id"]}
    models.wait_open(1, key=key)
    assert_problem(api.request("POST", f"{run.path}/compact", json={}), 409, "run_is_busy")
    assert_problem(api.request("POST", f"{run.path}/compact", json={"undo": True}), 409, "run_is_busy")
    run.cancel(wait_ms=30_000)
    five_checks(run, models, key)


# -- other runs and servers --------------------------------------------------------------------


def test_a_compaction_holds_for_the_session_in_the_next_run_and_after_a_restart(
    own: ServerProcess, models: ModelServer, key: str
) -> None:
    run = start_talk(own.api(key), key, session_id=f"session-{key}")
    compacted(run)
    own.kill()
    own.start()
    run = seen_at(own, run)
    assert system_of(ask_next(run, models, key)).endswith(_heading(12))
    run.terminate()
    second = run.api.start(script("strict", key=key), session_id=run.session_id)
    second.wait_parked()
    assert system_of(models.calls(key=key)[-1]).endswith(_heading(12))
    five_checks(second, models, key)


def test_a_session_with_compactions_is_exported_whole_and_imported_without_them(
    api: Api, models: ModelServer, key: str
) -> None:
    run = start_talk(api, key)
    compacted(run)
    run.say(say_done(key))
    run.wait_parked()
    compacted(run)
    lines = export_session(api, run.session_id)
    assert [line["type"] for line in lines] == ["session", "turn", "turn"]
    other = import_session(api, lines, f"?session_id=other-{key}")
    assert [each["content"] for each in other.transcript()] == [each["content"] for each in run.transcript()]
    request = ask_next(other, models, key)
    assert "Summary of" not in system_of(request)
    assert texts_of(request)[0] == ("user", "question 0")
    assert "question 2" in _said(request)
    assert compacted(other)["messages"] == 16
    five_checks(other, models, key)
