"""A run that begins with an earlier conversation, in either form of messages, whole or broken."""

from typing import Any

import pytest

from tests.support.api_client import Api, Run
from tests.support.five_checks import check_results, five_checks
from tests.support.going_back import go_back, last_call, system_of, texts_of
from tests.support.model_server import ModelServer, ServedCall, script
from tests.support.plans import say_done, seen_at, start_silent
from tests.support.servers import ServerProcess

OPENAI: list[dict[str, Any]] = [
    {"role": "system", "content": "Speak like a sailor."},
    {"role": "user", "content": [{"type": "text", "text": "What is in the hold?"}]},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": '{"where": "hold"}'}},
            {"id": "call_2", "type": "function", "function": {"name": "look", "arguments": '{"where": "deck"}'}},
        ],
    },
    {"role": "tool", "tool_call_id": "call_1", "content": "rum"},
    {"role": "tool", "tool_call_id": "call_2", "content": "a parrot"},
    {"role": "assistant", "content": "Rum, and a parrot on deck."},
]
ANTHROPIC: list[dict[str, Any]] = [
    {"role": "user", "content": "What is in the hold?"},
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "hm", "signature": "x"},
            {"type": "text", "text": "I will look."},
            {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"where": "hold"}},
        ],
    },
    {"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "rum"}]},
        {"type": "text", "text": "And on deck?"},
    ]},
    {"role": "assistant", "content": "A parrot."},
]  # fmt: skip
#: A result without its call, a call without its result, a duplicate, a wrong order, two users in a row, blanks.
BROKEN: list[dict[str, Any]] = [
    {"role": "tool", "tool_call_id": "nobody", "content": "an orphan"},
    {"role": "assistant", "content": "It begins with an answer."},
    {"role": "user", "content": "first"},
    {"role": "user", "content": "second"},
    {"role": "assistant", "content": "", "tool_calls": [
        {"id": "a", "type": "function", "function": {"name": "look", "arguments": "not json"}},
        {"id": "b", "type": "function", "function": {"name": "look", "arguments": "{}"}},
        {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}},
    ]},
    {"role": "tool", "tool_call_id": "b", "content": "of b"},
    {"role": "tool", "tool_call_id": "b", "content": "of b"},
    {"role": "tool", "tool_call_id": "a", "content": "of a"},
    {"role": "assistant", "content": "   "},
    {"role": "user", "content": "the last question has no answer"},
]  # fmt: skip


def _start(api: Api, key: str, messages: list[Any], **fields: Any) -> Run:
    run = api.start(script("strict", key=key), messages=messages, **fields)
    assert run.wait_parked() == "awaiting_input"
    return run


def _bare(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    names = ("role", "content", "tool_calls", "tool_call_id")
    return [{name: each[name] for name in names if name in each} for each in messages]


def _results(call: ServedCall) -> list[str]:
    return [str(message["content"]) for message in call.messages if message["role"] == "tool"]


@pytest.mark.parametrize("messages", [OPENAI, ANTHROPIC, BROKEN], ids=["openai", "anthropic", "broken"])
def test_an_earlier_conversation_goes_before_the_first_message_and_every_provider_takes_it(
    each_provider: ServerProcess, models: ModelServer, key: str, messages: list[dict[str, Any]]
) -> None:
    run = _start(each_provider.api(key), key, messages)
    said = run.transcript()
    assert said[-1]["content"] == "All messages are in order."
    check_results(said)
    earlier = [each for each in said if each["turn_id"] is None]
    assert said == [*earlier, *said[-2:]]
    assert {each["turn_id"] for each in said[-2:]} == {run.first_turn}
    if each_provider.environment.get("LLM_PROVIDER") != "anthropic":  # it has another form
        sent = [each for each in last_call(models, key).messages if each["role"] != "system"]
        assert sent[:-1] == _bare([each for each in earlier if each["role"] != "system"])
        assert sent[-1] == {"role": "user", "content": script("strict", key=key)}
    five_checks(run, models, key)


def test_names_and_ids_that_servers_refuse_do_not_spoil_the_session(
    each_provider: ServerProcess, models: ModelServer, key: str
) -> None:
    names = ["functions.look", "functions_look", "l" * 70]
    ids = ["toolu:" + "0" * 50 + str(number) for number in range(3)]
    functions = [{"name": name, "arguments": "{}"} for name in names]
    calls = [{"id": i, "type": "function", "function": each} for i, each in zip(ids, functions, strict=True)]
    results = [{"role": "tool", "tool_call_id": i, "content": f"of {name}"} for i, name in zip(ids, names, strict=True)]
    earlier = [{"role": "user", "content": "look"}, {"role": "assistant", "tool_calls": calls}, *reversed(results)]

    run = _start(each_provider.api(key), key, earlier)

    said = run.transcript()
    assert said[-1]["content"] == "All messages are in order."
    assert [each["id"] for each in said[1]["tool_calls"]] == ids
    assert [each["function"]["name"] for each in said[1]["tool_calls"]] == names
    sent = last_call(models, key).messages
    [asked] = [each for each in sent if each.get("tool_calls")]
    answers = {each["tool_call_id"]: each["content"] for each in sent if each["role"] == "tool"}
    assert [answers[call["id"]] for call in asked["tool_calls"]] == [f"of {name}" for name in names]
    five_checks(run, models, key)


def test_openai_messages_keep_their_calls_and_results(api: Api, models: ModelServer, key: str) -> None:
    run = _start(api, key, OPENAI)
    said = run.transcript()
    assert [each["role"] for each in said[:6]] == ["system", "user", "assistant", "tool", "tool", "assistant"]
    assert [call["id"] for call in said[2]["tool_calls"]] == ["call_1", "call_2"]
    assert _results(last_call(models, key)) == ["rum", "a parrot"]
    five_checks(run, models, key)


def test_system_text_reaches_the_system_message_and_only_that(api: Api, models: ModelServer, key: str) -> None:
    developer = {"role": "developer", "content": "Be brief."}
    run = _start(api, key, [*OPENAI, developer])
    request = last_call(models, key)
    assert [message["role"] for message in request.messages].count("system") == 1
    assert "Speak like a sailor." in system_of(request)
    assert "Be brief." in system_of(request)
    assert not any("sailor" in text or "brief" in text for _, text in texts_of(request) if text)
    assert [each["content"] for each in run.transcript()[:2]] == ["Speak like a sailor.", "Be brief."]
    five_checks(run, models, key)
    assert "Speak like a sailor." in system_of(last_call(models, key))  # in later turns too


def test_anthropic_blocks_become_messages_of_our_own_form(api: Api, models: ModelServer, key: str) -> None:
    run = _start(api, key, ANTHROPIC)
    assert [(each["role"], each["content"]) for each in run.transcript()[:5]] == [
        ("user", "What is in the hold?"), ("assistant", "I will look."), ("tool", "rum"), ("user", "And on deck?"),
        ("assistant", "A parrot."),
    ]  # fmt: skip
    assert "thinking" not in str(last_call(models, key).messages)
    five_checks(run, models, key)


def test_a_broken_conversation_is_healed_and_nothing_that_was_said_is_lost(
    api: Api, models: ModelServer, key: str
) -> None:
    run = _start(api, key, BROKEN)
    said = run.transcript()
    texts = [each["content"] for each in said]
    assert all(text in texts for text in ("It begins with an answer.", "first", "second", "of a", "of b"))
    assert texts.count("of b") == 1
    assert "an orphan" not in texts
    results = {each["tool_call_id"]: each["content"] for each in said if each["role"] == "tool"}
    assert results == {"a": "of a", "b": "of b", "c": "[no result was recorded]"}
    five_checks(run, models, key)


def test_the_planner_too_is_told_of_the_earlier_conversation(api: Api, models: ModelServer, key: str) -> None:
    run = api.start(script("strict", key=key), planning="auto", messages=OPENAI)
    assert run.wait_parked() == "awaiting_input"
    planning = models.calls(key=key)[0]
    assert planning.must_call is not None
    assert ("user", "What is in the hold?") in texts_of(planning)
    assert run.transcript()[-1].get("failed") is None
    five_checks(run, models, key)


@pytest.mark.parametrize(
    ("messages", "field"),
    [
        ({"role": "user", "content": "x"}, "messages"),
        ("hello", "messages"),
        (["hello"], "messages.0"),
        ([{"role": "user", "content": "x"}, {"role": "narrator", "content": "x"}], "messages.1.role"),
        ([{"content": "x"}], "messages.0.role"),
        ([{"role": "user", "content": 7}], "messages.0.content"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}], "messages.0.content.0"),
        ([{"role": "user", "content": [{"type": "text", "text": 7}]}], "messages.0.content.0.text"),
        ([{"role": "assistant", "tool_calls": {}}], "messages.0.tool_calls"),
        ([{"role": "assistant", "tool_calls": [{"id": "a"}]}], "messages.0.tool_calls.0.function"),
        ([{"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "n", "input": 1}]}],
         "messages.0.content.0.input"),
    ],
)  # fmt: skip
def test_messages_of_a_wrong_shape_are_refused_with_their_place_and_no_run_is_made(
    api: Api, messages: object, field: str
) -> None:
    problem = api.post("/v1/runs", {"input": "x", "planning": "none", "messages": messages}, expect=422)
    assert problem["code"] == "invalid_request"
    assert [error["field"] for error in problem["errors"]] == [field]
    assert api.get("/v1/runs")["runs"] == []


def test_an_empty_list_is_no_conversation(api: Api, models: ModelServer, key: str) -> None:
    run = _start(api, key, [])
    assert len(run.transcript()) == 2
    five_checks(run, models, key)


def test_an_earlier_conversation_survives_a_rollback_of_the_first_turn_and_a_kill(
    own: ServerProcess, models: ModelServer, key: str
) -> None:
    run = start_silent(own.api(), models, key, messages=BROKEN + OPENAI)
    run.cancel(wait_ms=30_000)
    earlier = [each for each in run.transcript() if each["turn_id"] is None]
    assert len(earlier) > len(OPENAI)
    assert go_back(run, "rollback")["rolled_back"] is True
    assert run.transcript() == earlier
    own.kill()
    own.start()
    run = seen_at(own, run)
    assert run.transcript() == earlier
    five_checks(run, models, key)
    request = last_call(models, key)
    assert "Speak like a sailor." in system_of(request)
    assert len(texts_of(request)) == len(earlier)  # without the system text, with the new message


def test_an_earlier_conversation_survives_a_resume_and_a_regenerate_of_the_first_turn(
    api: Api, models: ModelServer, key: str
) -> None:
    run = api.start(script("busy", times=1, retry_after_s=60, key=key), messages=ANTHROPIC)
    run.wait_event("retry")
    run.cancel(wait_ms=30_000)
    earlier = run.transcript()[:-2]
    for verb in ("resume", "regenerate"):
        turn_id = go_back(run, verb)["turn_id"]
        run.wait_event("turn_completed", turn_id=turn_id)
        run.wait_parked()
        assert run.transcript()[:-2] == earlier
        assert ("user", "And on deck?") in texts_of(last_call(models, key))
    five_checks(run, models, key)


def test_a_second_run_of_a_session_may_bring_a_conversation_too(api: Api, models: ModelServer, key: str) -> None:
    first = _start(api, key, ANTHROPIC, session_id=key)
    first.terminate()
    second = _start(api, key, [{"role": "user", "content": "from elsewhere"}], session_id=key)
    contents = [each["content"] for each in second.transcript()]
    assert contents.index("A parrot.") < contents.index("from elsewhere")
    five_checks(second, models, key)


def test_a_goal_with_a_plan_is_told_of_the_earlier_conversation(api: Api, models: ModelServer, key: str) -> None:
    plan = {"goals": [{"id": "a", "prompt": say_done(f"{key}-a")}, {"id": "b", "prompt": say_done(f"{key}-b")}]}
    run = api.start("both", plan=plan, messages=OPENAI)
    assert run.wait_parked() == "awaiting_input"
    for name in ("a", "b"):
        assert ("user", "What is in the hold?") in texts_of(last_call(models, f"{key}-{name}"))
    five_checks(run, models, key)
