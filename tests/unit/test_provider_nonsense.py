"""Answers that are no answers: each ends with a clear error and in bounded memory."""

import gzip
import json
import threading
import tracemalloc
import zlib
from collections.abc import Callable

import pytest

from core.errors import ProviderError, ProviderNonsense, ProviderSilent, ProviderUnreachable
from core.provider.backoff import RetryPolicy
from core.provider.openai import OpenAIProvider
from tests.support.provider_kit import (
    DONE,
    STOP,
    WHOLE,
    Running,
    after_request,
    answers,
    cut,
    frame,
    reply,
    sse,
    text_of,
)
from tests.support.raw_server import Peer, RawServer

STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"


def failure(script: Callable[[Peer], None]) -> ProviderError:
    """The error of a request to a server that runs the script after reading the request."""
    with RawServer(after_request(script)) as server:
        running = Running(OpenAIProvider(f"{server.url}/v1")).wait()
    assert isinstance(running.error, ProviderError), repr(running.error)
    assert len(running.error.detail) < 400
    assert running.call.scope.cause is None
    return running.error


PAGE = b"<!DOCTYPE html><html><body>Welcome to nginx</body></html>"


@pytest.mark.parametrize("content_type", ["text/html", "text/event-stream", "application/json", "text/plain"])
def test_html(content_type: str) -> None:
    error = failure(answers(PAGE, content_type))

    assert type(error) is ProviderNonsense
    assert "HTML" in error.detail
    assert "nginx" not in error.detail


@pytest.mark.parametrize(
    ("body", "content_type", "words"),
    [
        (b"", "text/event-stream", "nothing"),
        (b"\n\n", "text/event-stream", "end mark"),
        (b"", "application/json", "nothing"),
        (b'{"choices": [', "application/json", "not JSON"),
        (b'data: {"choices": [\n\n', "text/event-stream", "not JSON"),
        (b"[" * 100_000, "application/json", "not JSON"),
        (b"[]", "application/json", "not an object"),
        (b"{}", "application/json", "without choices"),
        (b'{"choices": 5}', "application/json", "not a list"),
        (b'{"choices": [5]}', "application/json", "not an object"),
        (b'{"choices": [{"message": {"content": 5}}]}', "application/json", "not a string"),
        (b'{"choices": [{"message": {"content": ""}}]}', "application/json", "answered nothing"),
        (b'{"choices": [{"message": {"content": "\xff"}}]}', "application/json", "UTF-8"),
        (b'data: {"choices": [{"delta": {"content": "\xc3"}}]}\n\n', "text/event-stream", "UTF-8"),
        (frame("hello"), "text/event-stream", "end mark"),
        (frame() + STOP + DONE, "text/event-stream", "answered nothing"),
        (sse({"choices": [{"delta": {"tool_calls": 1}}]}), "text/event-stream", "not a list"),
        (
            sse({"choices": [{"delta": {"tool_calls": [{"index": 0, "function": {}}]}}]}) + STOP,
            "text/event-stream",
            "without a name",
        ),
        (b"hello, I am no stream\n", "text/plain", "end mark"),
    ],
)
def test_a_body_that_is_not_of_the_protocol(body: bytes, content_type: str, words: str) -> None:
    error = failure(answers(body, content_type))

    assert type(error) is (ProviderSilent if words == "answered nothing" else ProviderNonsense)
    assert words in error.detail
    assert not RetryPolicy().is_retryable(error)


def test_a_finish_reason_that_cut_the_thinking_is_named() -> None:
    thinking = sse({"choices": [{"delta": {"reasoning_content": "hm"}, "finish_reason": "length"}]})

    assert "length" in failure(answers(thinking + DONE)).detail


def test_a_stream_that_breaks_off_after_text_is_not_worth_a_retry() -> None:
    error = failure(cut(frame("hello")))

    assert isinstance(error, ProviderUnreachable)
    assert "broke off" in error.detail
    assert not RetryPolicy().is_retryable(error)


def test_a_stream_that_breaks_off_before_any_text_is_worth_a_retry() -> None:
    error = failure(cut(b": hello\n\n"))

    assert isinstance(error, ProviderUnreachable)
    assert RetryPolicy().is_retryable(error)


@pytest.mark.parametrize("body", [frame("hello"), frame("hello") + b'data: {"cho', b'{"choices": ['])
def test_a_body_without_framing_that_ends_early_broke_off(body: bytes) -> None:
    error = failure(lambda peer: peer.send(STREAM_HEAD + b"\r\n" + body))

    assert isinstance(error, ProviderUnreachable)
    assert "broke off" in error.detail


def test_a_body_shorter_than_its_length_broke_off() -> None:
    error = failure(lambda peer: peer.send(STREAM_HEAD + b"Content-Length: 5000\r\n\r\n" + frame("hello")))

    assert isinstance(error, ProviderUnreachable)


def test_a_server_that_does_not_speak_http() -> None:
    assert "HTTP" in failure(lambda peer: peer.send(b"SSH-2.0-OpenSSH_9\r\n")).detail


def test_endless_header_lines() -> None:
    error = failure(lambda peer: peer.send(b"HTTP/1.1 200 OK\r\n" + b"X-A: b\r\n" * 500 + b"\r\n"))

    assert isinstance(error, ProviderNonsense)


def endless(piece: bytes) -> Callable[[Peer], None]:
    def script(peer: Peer) -> None:
        peer.begin_stream()
        while True:
            peer.chunk(piece)

    return script


def bomb(encoding: str) -> Callable[[Peer], None]:
    """A quarter of a GiB of blanks in a quarter of a MiB."""
    kind = 31 if encoding == "gzip" else 15
    packer = zlib.compressobj(9, wbits=kind)
    block = b" " * (1 << 20)
    body = b"".join(packer.compress(block) for _ in range(256)) + packer.flush()
    head = STREAM_HEAD + f"Content-Encoding: {encoding}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    return lambda peer: peer.send(head + body)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: endless(b"x" * 65536), "line"),
        (lambda: endless(b"data: " + b"x" * 1000 + b"\n"), "event"),
        (lambda: endless((b": " + b"x" * 1000 + b"\n\n") * 60), "MiB"),
        (lambda: endless(frame("x" * 1000) * 60), "MiB"),
        (lambda: endless(b"{" + b" " * 65536), "MiB"),
        (lambda: bomb("gzip"), "line"),
        (lambda: bomb("deflate"), "line"),
    ],
    ids=["line", "event", "comments", "text", "json", "gzip bomb", "deflate bomb"],
)
def test_an_endless_answer_is_refused_in_bounded_memory(make: Callable[[], Callable[[Peer], None]], words: str) -> None:
    script = make()
    tracemalloc.start()

    error = failure(script)

    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert type(error) is ProviderNonsense
    assert words in error.detail
    assert peak < 128 << 20


def test_a_body_that_is_not_gzip_though_it_says_so() -> None:
    def script(peer: Peer) -> None:
        peer.send(STREAM_HEAD + b"Content-Encoding: gzip\r\nContent-Length: 5\r\n\r\nhello")

    assert "encoding" in failure(script).detail


# -- what looks odd and is an answer all the same ------------------------------------------


def good(script: Callable[[Peer], None]) -> str:
    with RawServer(after_request(script)) as server:
        return text_of(reply(OpenAIProvider(f"{server.url}/v1")))


@pytest.mark.parametrize("content_type", ["application/json", "application/json; charset=utf-8", "text/plain"])
def test_a_whole_reply_instead_of_a_stream(content_type: str) -> None:
    assert good(answers(WHOLE, content_type)) == "whole"
    assert good(answers(b"\n\n  " + WHOLE, "application/json")) == "whole"


@pytest.mark.parametrize(
    "body",
    [
        frame("ok") + STOP,
        frame("ok") + DONE,
        frame("ok") + STOP + b"data: [DONE]",
        (frame("ok") + STOP + DONE).replace(b"\n", b"\r\n"),
        frame("ok", finish_reason="stop"),
    ],
)
def test_a_stream_that_ends_in_one_of_the_usual_ways(body: bytes) -> None:
    assert good(answers(body)) == "ok"
    assert good(lambda peer: peer.send(STREAM_HEAD + b"\r\n" + body)) == "ok"


def test_a_compressed_stream_is_read() -> None:
    body = gzip.compress(frame("ok") + STOP + DONE)
    head = STREAM_HEAD + f"Content-Encoding: gzip\r\nContent-Length: {len(body)}\r\n\r\n".encode()

    assert good(lambda peer: peer.send(head + body)) == "ok"


def test_a_break_after_the_finish_reason_is_no_failure() -> None:
    assert good(cut(frame("ok") + STOP)) == "ok"


def test_a_server_that_never_closes_after_the_finish_reason_is_not_waited_for_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("core.provider.provider_http._REST_S", 0.2)
    over = threading.Event()

    def script(peer: Peer) -> None:
        peer.begin_stream()
        peer.chunk(frame("ok") + STOP)
        if peer.wait_hang_up():
            over.set()

    assert good(script) == "ok"
    assert over.wait(10)


def test_lone_surrogates_in_a_request_do_not_break_it() -> None:
    from core.provider.provider import ModelRequest

    seen: list[bytes] = []

    def script(peer: Peer) -> None:
        request = peer.read_request()
        assert request is not None
        seen.append(request.body)
        peer.answer(WHOLE)

    with RawServer(script) as server:
        reply(OpenAIProvider(f"{server.url}/v1"), ModelRequest([{"role": "user", "content": "a\ud83d"}], "m"))

    assert json.loads(seen[0])["messages"][0]["content"] == "a?"
