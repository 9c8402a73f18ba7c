"""What a client sees of each script of the stand-in gateway."""

import http.client
import json
from collections.abc import Iterator
from typing import Any

import pytest

from de2generator.odd_scripts import SPLIT_TEXT
from tests.support.chat_client import asking, text_of
from tests.support.model_server import ModelServer, script


@pytest.fixture(scope="module")
def gateway() -> Iterator[ModelServer]:
    with ModelServer() as server:
        yield server


def tool_calls_of(events: list[Any]) -> list[tuple[str, str]]:
    """Name and arguments of each streamed tool call, put together from its pieces."""
    calls: dict[int, list[str]] = {}
    for event in events:
        for choice in event.get("choices", ()):
            for piece in choice["delta"].get("tool_calls", ()):
                call = calls.setdefault(piece["index"], ["", ""])
                call[0] += piece["function"].get("name", "")
                call[1] += piece["function"]["arguments"]
    return [(name, arguments) for name, arguments in calls.values()]


def test_a_stream_has_role_text_finish_usage_and_done_in_this_order(gateway: ModelServer) -> None:
    usage = {"include_usage": True}
    with asking(gateway.url, script("trickle", tokens=3, interval_ms=1), stream_options=usage) as asked:
        events = asked.events()
    assert asked.response.headers["Content-Type"].startswith("text/event-stream")
    *chunks, counted, done = events
    assert [event["choices"][0]["delta"] for event in chunks] == [
        {"role": "assistant", "content": ""},
        {"content": "t1 "},
        {"content": "t2 "},
        {"content": "t3 "},
        {},
    ]
    assert [event["choices"][0]["finish_reason"] for event in chunks] == [None] * 4 + ["stop"]
    assert all(event["object"] == "chat.completion.chunk" and event["usage"] is None for event in chunks)
    assert counted["choices"] == []
    assert counted["usage"]["completion_tokens"] == 3
    assert done == "[DONE]"


def test_a_whole_reply_carries_the_same_text_and_a_usage(gateway: ModelServer) -> None:
    with asking(gateway.url, script("trickle", tokens=2, interval_ms=1), stream=False) as asked:
        reply = asked.json()
    assert reply["object"] == "chat.completion"
    assert reply["choices"][0]["message"] == {"role": "assistant", "content": "t1 t2 "}
    assert reply["choices"][0]["finish_reason"] == "stop"
    assert reply["usage"]["completion_tokens"] == 2


def test_reasoning_comes_before_the_text(gateway: ModelServer) -> None:
    line = script("trickle", reasoning=2, tokens=1, interval_ms=1)
    with asking(gateway.url, line) as asked:
        deltas = [event["choices"][0]["delta"] for event in asked.events()[1:-2]]
    assert deltas == [{"reasoning_content": "r1 "}, {"reasoning_content": "r2 "}, {"content": "t1 "}]


def test_the_model_name_may_carry_the_script(gateway: ModelServer) -> None:
    with asking(gateway.url, "hello", model="script:trickle,tokens=1,interval_ms=1") as asked:
        assert text_of(asked.events()[:-1]) == "t1 "


def test_only_the_last_user_message_is_searched_for_a_script(gateway: ModelServer) -> None:
    messages = [
        {"role": "user", "content": script("error")},
        {"role": "assistant", "content": "no"},
        {"role": "user", "content": "first line\n" + script("trickle", tokens=1)},
    ]
    with asking(gateway.url, "", messages=messages) as asked:
        assert text_of(asked.events()[:-1]) == "t1 "


@pytest.mark.parametrize("line", ["/script nobody", "/script trickle tokens=many", "/script trickle tokens"])
def test_a_wrong_script_line_is_a_400_that_says_why(gateway: ModelServer, line: str) -> None:
    with asking(gateway.url, line) as asked:
        assert asked.status == 400
        assert asked.json()["error"]["type"] == "invalid_request_error"


def test_nonstream_answers_whole_where_a_stream_was_asked(gateway: ModelServer) -> None:
    with asking(gateway.url, script("nonstream", delay_ms=1, tokens=2)) as asked:
        assert asked.json()["choices"][0]["message"]["content"] == "t1 t2 "
    assert asked.response.headers["Content-Type"] == "application/json"


def test_busy_refuses_so_many_times_and_then_answers(gateway: ModelServer) -> None:
    line = script("busy", times=2, retry_after_s=3, key="busy-then-ok", tokens=1)
    seen = []
    for _ in range(3):
        with asking(gateway.url, line) as asked:
            seen.append((asked.status, asked.response.headers["Retry-After"]))
    assert seen == [(429, "3"), (429, "3"), (200, None)]


def test_busy_counts_each_key_for_itself_and_takes_another_status(gateway: ModelServer) -> None:
    for key in ("one", "two"):
        with asking(gateway.url, script("busy", times=1, status=503, key=key)) as asked:
            assert asked.status == 503


@pytest.mark.parametrize("how", ["close", "reset"])
def test_drop_breaks_the_body_off_after_so_many_tokens(gateway: ModelServer, how: str) -> None:
    line = script("drop", tokens=2, interval_ms=1, how=how, key=how)
    with asking(gateway.url, line) as asked, pytest.raises((http.client.IncompleteRead, ConnectionError)):
        asked.response.read()
    [call] = gateway.wait_closed(1, key=how)[-1:]
    assert call.tokens_sent == 2
    assert gateway.calls(key=how)[-1].close_reason == "dropped"


def test_drop_may_end_the_body_properly_but_without_done(gateway: ModelServer) -> None:
    with asking(gateway.url, script("drop", tokens=2, interval_ms=1, how="end")) as asked:
        events = asked.events()
    assert text_of(events) == "t1 t2 "
    assert events[-1]["choices"][0]["finish_reason"] is None


def test_toolcall_streams_the_calls_in_pieces(gateway: ModelServer) -> None:
    arguments = {"command": "echo a long line with spaces in it", "cwd": "/tmp"}
    with asking(gateway.url, script("toolcall", name="shell", arguments=arguments, count=2)) as asked:
        *events, done = asked.events()
    calls = tool_calls_of(events)
    assert [(name, json.loads(text)) for name, text in calls] == [("shell", arguments)] * 2
    assert events[-1]["choices"][0]["finish_reason"] == "tool_calls"
    assert len(events) > 2 + 2 * 2
    assert done == "[DONE]"


def test_toolcall_can_call_different_tools_in_one_message(gateway: ModelServer) -> None:
    line = script("toolcall", name=["shell", "ask_user"], arguments=['{"command":"true"}', "{}"])
    with asking(gateway.url, line, stream=False) as asked:
        calls = asked.json()["choices"][0]["message"]["tool_calls"]
    assert [call["function"]["name"] for call in calls] == ["shell", "ask_user"]
    assert len({call["id"] for call in calls}) == 2


def test_toolcall_answers_with_text_once_it_sees_the_results(gateway: ModelServer) -> None:
    line = script("toolcall", name="shell", tokens=1)
    with asking(gateway.url, line, stream=False) as asked:
        first = asked.json()["choices"][0]["message"]
    result = {"role": "tool", "tool_call_id": first["tool_calls"][0]["id"], "content": "done"}
    messages = [{"role": "user", "content": line}, first, result]
    with asking(gateway.url, "", messages=messages, stream=False) as asked:
        assert asked.json()["choices"][0]["message"]["content"] == "t1 "


@pytest.mark.parametrize("offset", [-3, 0, 2, 6, 9, 500])
def test_split_loses_no_byte_wherever_it_cuts(gateway: ModelServer, offset: int) -> None:
    with asking(gateway.url, script("split", offset=offset, pause_ms=1)) as asked:
        assert text_of(asked.events()[:-1]) == SPLIT_TEXT


def test_split_shows_half_a_character_before_the_pause(gateway: ModelServer) -> None:
    with asking(gateway.url, script("split", pause_ms=60_000)) as asked:
        seen = b""
        while not seen.endswith(b"\xf0\x9f"):
            seen += asked.response.read1()


def test_split_can_send_byte_by_byte(gateway: ModelServer) -> None:
    with asking(gateway.url, script("split", every=1, pause_ms=0)) as asked:
        assert text_of(asked.events()[:-1]) == SPLIT_TEXT


def test_surrogates_come_as_two_lone_escapes(gateway: ModelServer) -> None:
    with asking(gateway.url, script("surrogates")) as asked:
        body = asked.response.read()
    assert b'"\\ud83d"' in body
    assert b'"\\ude42"' in body


def test_nonsense_scripts_are_as_broken_as_they_say(gateway: ModelServer) -> None:
    bodies = {}
    for name in ("html", "halfjson", "badutf8", "empty"):
        with asking(gateway.url, script(name)) as asked:
            assert asked.status == 200
            bodies[name] = asked.response.read()
    assert bodies["html"].startswith(b"<!doctype html>")
    assert bodies["halfjson"].startswith(b"data: {")
    assert not bodies["halfjson"].rstrip().endswith(b"}")
    assert b"\xff\xfe" in bodies["badutf8"]
    assert bodies["empty"] == b""


def test_endless_waits_for_its_reader_and_notices_the_hang_up(gateway: ModelServer) -> None:
    with asking(gateway.url, script("endless", key="endless")) as asked:
        got = b"".join(asked.response.read(65_536) for _ in range(16))
        asked.hang_up()
    assert b"\n" not in got
    [call] = gateway.wait_closed(1, key="endless")
    assert call.close_reason == "client_gone"
    assert call.bytes_sent < 32 * 1024 * 1024


def test_nothing_is_a_valid_answer_without_text(gateway: ModelServer) -> None:
    with asking(gateway.url, script("nothing")) as asked:
        *events, done = asked.events()
    assert text_of(events) == ""
    assert events[-1]["choices"][0]["finish_reason"] == "stop"
    assert done == "[DONE]"


def test_error_answers_the_status_that_is_asked_for(gateway: ModelServer) -> None:
    with asking(gateway.url, script("error", status=418)) as asked:
        assert asked.status == 418
        assert asked.json()["error"]["code"] == 418


@pytest.mark.parametrize("body", [b"{", b"[]", b'{"messages": []}', b'{"messages": [1]}'])
def test_a_wrong_body_is_a_400(gateway: ModelServer, body: bytes) -> None:
    connection = http.client.HTTPConnection(gateway.url.removeprefix("http://"), timeout=20)
    try:
        connection.request("POST", "/v1/chat/completions", body)
        response = connection.getresponse()
        assert response.status == 400
        assert json.loads(response.read())["error"]["code"] == 400
    finally:
        connection.close()
