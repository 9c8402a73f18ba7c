"""The Anthropic provider over real sockets: what it sends, what it makes of answers, and whose fault an error is."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from core.cancellation import GoalCancelledException
from core.errors import (
    ConfigurationError,
    ProviderError,
    ProviderNonsense,
    ProviderRejected,
    ProviderSilent,
    ProviderUnreachable,
)
from core.provider.anthropic import AnthropicProvider
from core.provider.backoff import RetryPolicy, retry_after_of
from core.provider.make_provider import make_provider
from core.provider.provider import Delta, ModelRequest, ToolCall, Usage
from tests.support.anthropic_kit import (
    END,
    STOP,
    WHOLE,
    called,
    event,
    good_reply,
    opened,
    said,
    start,
    stopped,
    tool,
    user,
)
from tests.support.provider_kit import (
    HELLO,
    Running,
    after_request,
    answers,
    cut,
    held_after_every_byte,
    reply,
    split_at_every_byte,
    text_at_the_stop,
    text_of,
)
from tests.support.raw_server import Peer, RawRequest, RawServer

KEY = "sk-ant-secret-0123456789"
POLICY = RetryPolicy()
TEXT = "é漢😀"


def run(script: Callable[[Peer], None], request: ModelRequest = HELLO) -> Running:
    with RawServer(after_request(script)) as server:
        return Running(AnthropicProvider(server.url, KEY), request=request).wait()


def failure(script: Callable[[Peer], None]) -> ProviderError:
    error = run(script).error
    assert isinstance(error, ProviderError), repr(error)
    assert KEY not in str(error)
    assert KEY not in error.detail
    assert len(error.detail) < 400
    return error


def good(script: Callable[[Peer], None], request: ModelRequest = HELLO) -> list[Delta]:
    running = run(script, request)
    assert running.error is None, repr(running.error)
    return running.deltas


# -- what is sent -----------------------------------------------------------------------------


def sent(base: str, key: str | None) -> RawRequest:
    """The request as the server gets it; ``base`` is added to its address."""
    with RawServer(good_reply) as server:
        assert text_of(reply(AnthropicProvider(server.url + base, key))) == "ok"
        return server.peer().requests[0]


@pytest.mark.parametrize("base", ["", "/", "/v1", "/v1/"])
def test_the_address_may_end_in_v1_or_not(base: str) -> None:
    assert sent(base, KEY).line == "POST /v1/messages HTTP/1.1"


def test_an_address_with_a_path_keeps_it() -> None:
    assert sent("/anthropic/v1", KEY).path == "/anthropic/v1/messages"


def test_the_key_and_the_version_go_in_the_headers_that_the_api_reads() -> None:
    request = sent("", KEY)

    assert request.headers["x-api-key"] == KEY
    assert request.headers["anthropic-version"] == "2023-06-01"
    assert request.headers["content-type"] == "application/json"
    assert "authorization" not in request.headers
    assert json.loads(request.body)["messages"] == [{"role": "user", "content": [{"type": "text", "text": "hello"}]}]


def test_without_a_key_no_header_is_sent() -> None:
    assert "x-api-key" not in sent("", " ").headers


def test_connections_are_used_again() -> None:
    with RawServer(good_reply) as server:
        provider = AnthropicProvider(server.url)
        for _ in range(3):
            reply(provider)

        assert len(server.peers) == 1
        assert len(server.peer().requests) == 3


def test_the_setting_names_it_and_it_cannot_be_asked() -> None:
    made = make_provider("anthropic", "http://127.0.0.1:1", KEY)

    assert isinstance(made, AnthropicProvider)
    assert not made.can_be_asked
    with pytest.raises(ConfigurationError, match="LLM_BASE_URL"):
        make_provider("anthropic", "127.0.0.1")


# -- what is understood -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        start() + said("ok") + STOP,
        said("ok") + END,
        said("ok") + stopped(),
        (start() + said("ok") + STOP).replace(b"\n", b"\r\n"),
        start() + event("ping") + said("ok") + STOP.rstrip(b"\n"),
    ],
)
def test_a_stream_that_ends_in_one_of_the_usual_ways(body: bytes) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"

    assert text_of(good(answers(body))) == "ok"
    assert text_of(good(lambda peer: peer.send(head + body))) == "ok"


@pytest.mark.parametrize("content_type", ["application/json", "text/plain"])
def test_a_whole_message_instead_of_a_stream(content_type: str) -> None:
    assert text_of(good(answers(WHOLE, content_type))) == "whole"


def test_a_tool_is_called_back_by_the_name_that_it_was_offered_with() -> None:
    request = ModelRequest([user("go")], "m", [tool("files.read")])

    deltas = good(answers(start() + called("a", "files_read", "{}") + stopped("tool_use") + END), request)

    assert [each for each in deltas if isinstance(each, ToolCall)] == [ToolCall("a", "files.read", "{}")]


def test_a_break_after_the_stop_reason_is_no_failure() -> None:
    assert text_of(good(cut(start(), said("ok"), stopped()))) == "ok"


def test_a_cut_at_every_byte_of_the_stream_changes_nothing() -> None:
    stream = said(TEXT) + END

    with RawServer(split_at_every_byte(stream)) as server:
        provider = AnthropicProvider(server.url)

        for _ in range(1, len(stream)):
            assert text_of(reply(provider)) == TEXT


def test_a_stop_after_every_byte_of_a_character_leaves_whole_text() -> None:
    stream = said("a") + said(TEXT)
    first = len(said("a"))

    with RawServer(held_after_every_byte(stream, first)) as server:
        provider = AnthropicProvider(server.url)
        for _ in range(len(stream) - first):
            assert text_at_the_stop(Running(provider)) == "a"


# -- what is refused --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "content_type", "words"),
    [
        (b"", "text/event-stream", "nothing"),
        (b"<!DOCTYPE html><html>hello</html>", "text/event-stream", "HTML"),
        (b"{}", "application/json", "without a type"),
        (b'{"choices": [{"message": {"content": "x"}}]}', "application/json", "without a type"),
        (b'{"type": "message", "content": [', "application/json", "not JSON"),
        (b'{"type": "message", "content": []}', "application/json", "answered nothing"),
        (b'data: {"type": "content_block_delta", "index": 0, "delta": {"ty\n\n', "text/event-stream", "not JSON"),
        (said("#").replace(b"#", b"\xff"), "text/event-stream", "UTF-8"),
        (start() + said("hello"), "text/event-stream", "end mark"),
        (start() + stopped() + END, "text/event-stream", "answered nothing"),
        (start() + opened("tool_use", id="a", input={}) + END, "text/event-stream", "without a name"),
    ],
)
def test_a_body_that_is_not_of_the_protocol(body: bytes, content_type: str, words: str) -> None:
    error = failure(answers(body, content_type))

    assert type(error) is (ProviderSilent if words == "answered nothing" else ProviderNonsense)
    assert words in error.detail
    assert not POLICY.is_retryable(error)


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504, 529])
def test_a_busy_server_is_worth_a_retry(status: int) -> None:
    body = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    error = failure(lambda peer: peer.answer(json.dumps(body).encode(), f"{status} Oops"))

    assert isinstance(error, ProviderRejected)
    assert error.http_status == status
    assert "Overloaded" in error.detail
    assert POLICY.is_retryable(error)


@pytest.mark.parametrize("status", [400, 401, 402, 403, 404, 413])
def test_a_wrong_request_is_not(status: int) -> None:
    body = {"type": "error", "error": {"type": "invalid_request_error", "message": f"bad key {KEY}"}}
    error = failure(lambda peer: peer.answer(json.dumps(body).encode(), f"{status} Oops"))

    assert isinstance(error, ProviderRejected)
    assert "bad key [hidden]" in error.detail
    assert not POLICY.is_retryable(error)


def test_a_key_of_any_shape_that_the_server_repeats_is_hidden_in_an_event_too() -> None:
    key = "plain-key-without-mark"

    def script(peer: Peer) -> None:
        peer.read_request()
        refused = event("error", error={"type": "authentication_error", "message": f"no {key}"})
        peer.answer(refused, content_type="text/event-stream")

    with RawServer(script) as server:
        error = Running(AnthropicProvider(server.url, key)).wait().error

    assert isinstance(error, ProviderRejected)
    assert error.http_status == 401
    assert "no [hidden]" in error.detail


def test_the_wait_that_a_busy_server_asks_for_is_kept() -> None:
    def script(peer: Peer) -> None:
        peer.send(b"HTTP/1.1 429 Busy\r\nretry-after: 17\r\nContent-Length: 0\r\n\r\n")

    assert retry_after_of(failure(script)) == 17


def test_499_means_that_the_call_was_cancelled_from_outside() -> None:
    running = run(lambda peer: peer.answer(b"{}", "499 Client Closed Request"))

    assert isinstance(running.error, GoalCancelledException)


def test_a_stream_that_breaks_off_before_any_text_is_worth_a_retry_though_its_usage_was_seen() -> None:
    running = run(cut(start(), event("ping")))

    assert running.deltas == [Usage(7, None)]
    assert isinstance(running.error, ProviderUnreachable)
    assert POLICY.is_retryable(running.error)


@pytest.mark.parametrize("said_so_far", [said("x"), opened("thinking", thinking="hm")])
def test_a_stream_that_breaks_off_after_text_or_thinking_is_not(said_so_far: bytes) -> None:
    assert not POLICY.is_retryable(failure(cut(start(), said_so_far)))


def test_a_tool_call_that_breaks_off_was_never_made() -> None:
    broken: list[Any] = [start(), opened("tool_use", id="a", name="f", input={})]
    running = run(cut(*broken))

    assert running.deltas == [Usage(7, None)]
    assert isinstance(running.error, ProviderUnreachable)


def test_an_overload_in_the_stream_is_worth_a_retry_until_text_was_said() -> None:
    overloaded = event("error", error={"type": "overloaded_error", "message": "Overloaded"})
    early, late = failure(cut(start(), overloaded)), failure(cut(start(), said("x"), overloaded))

    assert isinstance(early, ProviderRejected)
    assert early.http_status == 529
    assert POLICY.is_retryable(early)
    assert not POLICY.is_retryable(late)
