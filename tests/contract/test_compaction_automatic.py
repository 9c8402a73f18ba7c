"""Compaction by itself: before a turn whose history is longer than the limit, and inside that turn."""

from collections.abc import Iterator

import pytest

from tests.support.api_client import Api, Run
from tests.support.compacting import SUMMARY, ask_compact, ask_next, compactions_of, events_of, summary_calls, talk
from tests.support.five_checks import five_checks
from tests.support.going_back import NOTE, go_back, system_of
from tests.support.model_server import ModelServer, script
from tests.support.plans import goal, say_done
from tests.support.servers import ServerProcess

#: A talk of three exchanges is shorter by far.
LIMIT = 120


@pytest.fixture(scope="module")
def forgetful(models: ModelServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with a low limit."""
    folder = tmp_path_factory.mktemp("forgetful")
    with ServerProcess(folder, models.url, COMPACT_AT_TOKENS=str(LIMIT)) as process:
        yield process


@pytest.fixture
def user(forgetful: ServerProcess, key: str) -> Iterator[Api]:
    """A user of it."""
    api = forgetful.api(key)
    yield api
    api.close()


def _start(api: Api, key: str, line: str | None = None, exchanges: int = 5, **fields: object) -> Run:
    """A run whose first turn has that talk behind it; one of five exchanges is longer than the limit."""
    messages = talk(key, exchanges, line)
    if exchanges == 5:
        messages[6]["content"] += ", and more" * LIMIT
    return api.start(script("strict", key=key), messages=messages, **fields)


@pytest.mark.parametrize("planning", ["none", "auto"])
def test_a_long_history_is_compacted_in_the_turn_before_anything_else_is_asked(
    user: Api, models: ModelServer, key: str, planning: str
) -> None:
    run = _start(user, key, planning=planning)
    run.wait_parked()
    (event,) = compactions_of(run)
    assert event["turn_id"] == run.first_turn
    assert event["before_tokens"] > LIMIT
    assert (event["first"], event["last"], event["messages"]) == (2, 9, 7)
    types = [each["type"] for each in events_of(run, run.first_turn)]
    assert types[:4] == ["turn_started", "usage", "compaction", "usage" if planning == "auto" else "plan_updated"]
    first, *others = models.calls(key=key)
    assert [first] == summary_calls(models, key)
    assert len(others) == (2 if planning == "auto" else 1)
    for call in others:
        assert system_of(call).count(SUMMARY) == 1
        assert "question 2" not in str(call.messages)
        assert "question 0" in str(call.messages)
    assert len(run.transcript()) == len(talk(key, 5)) + 2
    five_checks(run, models, key)


def test_a_short_history_is_left_alone_and_so_is_one_that_was_compacted_enough(
    user: Api, models: ModelServer, key: str
) -> None:
    run = _start(user, key, exchanges=3)
    run.wait_parked()
    assert compactions_of(run) == []
    for _ in range(12):
        ask_next(run, models, key)
    made = [event["messages"] for event in compactions_of(run)]
    assert 2 <= len(made) < 6, "each one makes room for a while"
    assert made == sorted(set(made))
    five_checks(run, models, key)


def test_a_history_with_nothing_to_leave_out_is_sent_whole(user: Api, models: ModelServer, key: str) -> None:
    run = user.start(script("strict", key=key), messages=[{"role": "user", "content": "long " * 1000}])
    run.wait_parked()
    ask_next(run, models, key)
    assert compactions_of(run) == []
    assert "long long" in str(models.calls(key=key)[-1].messages)
    five_checks(run, models, key)


@pytest.mark.parametrize(
    "fault",
    [script("error", status=400), script("nothing"), script("drop", after=1)],
    ids=["refused", "empty", "broken off"],
)
def test_a_summary_that_fails_costs_nothing_but_the_summary(
    user: Api, models: ModelServer, key: str, fault: str
) -> None:
    run = _start(user, key, f"{fault} key={key}")
    run.wait_event("turn_completed")
    run.wait_parked()
    assert compactions_of(run) == []
    assert len(summary_calls(models, key)) >= 1
    assert "question 2" in str(models.calls(key=key)[-1].messages)
    assert "Summary of" not in system_of(models.calls(key=key)[-1])
    five_checks(run, models, key)


def test_a_stop_while_the_turn_compacts_stops_the_turn_and_changes_nothing(
    user: Api, models: ModelServer, key: str
) -> None:
    run = _start(user, key, script("silent", key=key))
    models.wait_open(1, key=key)
    answer = run.cancel(wait_ms=30_000)
    assert (answer["stopped"], answer["parked"]) == (True, True)
    assert [item["outcome"] for item in answer["receipt"] if item["kind"] == "model_call"] == ["cancelled"]
    assert compactions_of(run) == []
    assert len(models.calls(key=key)) == 1, "nothing was asked after the stop"
    assert run.transcript()[-1]["content"] == "[stopped by the user before any text]"
    assert run.transcript()[-2]["content"] == script("strict", key=key)
    sent = run.say(script("strict", key=key))  # its own compaction is silent too
    models.wait_open(1, key=key)
    assert run.cancel(wait_ms=30_000)["turn_id"] == sent["turn_id"]
    assert go_back(run, "rollback")["rolled_back"] is True
    assert compactions_of(run) == []


def test_the_turn_after_a_stopped_compaction_compacts(user: Api, models: ModelServer, key: str) -> None:
    run = _start(user, key, script("busy", times=1, retry_after_s=600, key=key))
    run.wait_event("retry")
    assert run.cancel(wait_ms=30_000)["stopped"] is True
    assert compactions_of(run) == []
    five_checks(run, models, key)
    (event,) = compactions_of(run)
    assert event["turn_id"] == run.view()["turn_id"]


def test_a_turn_that_is_resumed_or_brings_its_plan_is_compacted_too(user: Api, models: ModelServer, key: str) -> None:
    slow = script("trickle", tokens=4000, interval_ms=20, key=f"{key}-slow")
    run = _start(user, key, plan={"goals": [goal("slow", slow), goal("done", say_done(key))]})
    run.wait_event("text", goal_id="slow")
    run.cancel(wait_ms=30_000)
    assert len(compactions_of(run)) == 1
    go_back(run, "resume")
    models.wait_calls(2, key=f"{key}-slow")
    run.cancel(wait_ms=30_000)
    for call in models.calls(key=f"{key}-slow"):
        assert SUMMARY in system_of(call)
    assert len(compactions_of(run)) == 1, "one that is in force is not made again"
    five_checks(run, models, key)


def test_a_message_that_comes_while_the_turn_compacts_waits_for_its_end(
    user: Api, models: ModelServer, key: str
) -> None:
    run = _start(user, key, script("trickle", tokens=3, interval_ms=0, first_ms=700, key=key))
    models.wait_open(1, key=key)
    assert run.say(say_done(key))["disposition"] == "queued"
    run.wait_event("message_delivered")
    run.wait_parked()
    (event,) = compactions_of(run)
    assert (event["turn_id"], event["summary"]) == (run.first_turn, SUMMARY)
    assert [message["content"] for message in run.transcript()][-2:] == [say_done(key), "t1 t2 "]


def test_a_limit_of_zero_never_compacts_and_a_request_still_does(
    models: ModelServer, key: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with ServerProcess(tmp_path_factory.mktemp("own"), models.url, COMPACT_AT_TOKENS="0") as own:
        run = _start(own.api(key), key)
        run.wait_parked()
        assert compactions_of(run) == []
        ask_compact(run)
        run.wait_event("compaction")
        run.wait_parked()
        five_checks(run, models, key)


def test_the_stop_note_is_told_beside_the_summary(user: Api, models: ModelServer, key: str) -> None:
    run = _start(user, key)
    run.wait_parked()
    sent = run.say(script("trickle", tokens=4000, interval_ms=20, key=key))
    run.wait_event("text", turn_id=sent["turn_id"])
    run.cancel(wait_ms=30_000)
    system = system_of(ask_next(run, models, key))
    assert SUMMARY in system
    assert NOTE in system
    five_checks(run, models, key)
