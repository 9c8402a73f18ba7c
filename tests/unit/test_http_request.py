"""The HTTP tool: what it sends, what it returns, and its limits."""

import gzip
import json
import threading
import time
import zlib
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from core.call import Outcome
from core.cancellation import CauseWord
from core.settings import Settings
from core.tool.http_request import HttpRequest
from core.tool.registry import Toolbox
from core.tool.tool import Stops, ToolFailed
from tests.support.http_kit import HttpCall, answers, fetch, requests_of, says, tool, wait_seen_close
from tests.support.raw_server import PATIENCE_S, Peer, RawServer, black_hole, self_signed
from tests.support.shell_kit import leaves_nothing

# -- results ---------------------------------------------------------------------------------


def test_a_result_has_status_reason_url_headers_body_and_time() -> None:
    with RawServer(answers("grün".encode(), "Content-Type: text/plain\r\nX-One: 1")) as server:
        answer = fetch(f"{server.url}/path?q=1#part")
        url = f"{server.url}/path?q=1#part"

    assert answer.fields == {
        "status": 200, "reason": "OK", "url": url, "body": "grün", "success": True,
        "headers": {"Content-Type": "text/plain", "X-One": "1", "Content-Length": "5"},
        "execution_time": answer.execution_time,
    }  # fmt: skip
    assert 0 < answer.execution_time < 10
    assert not answer.result.is_error
    assert requests_of(server)[0].path == "/path?q=1"


@pytest.mark.parametrize("status", ["400 Bad Request", "404 Not Found", "500 Oops", "304 Not Modified", "300 Choose"])
def test_another_status_than_2xx_is_an_error_result_with_the_same_fields(status: str) -> None:
    with RawServer(answers(b"" if status[0:3] == "304" else b"why", status=status)) as server:
        answer = fetch(server.url)

    assert (answer.status, answer.reason) == (int(status[:3]), status[4:])
    assert answer.body == ("" if status[0:3] == "304" else "why")
    assert (answer.success, answer.result.is_error) == (False, True)
    assert "error" not in answer.fields


def test_a_request_has_the_method_headers_and_body_that_were_asked_for() -> None:
    with RawServer(answers(b"{}", "Content-Type: application/json", "201 Created")) as server:
        answer = fetch(
            server.url, method="PUT", body='{"a":"ü"}', headers={"Content-Type": "application/json", "X-Two": "zwei"}
        )

    (sent,) = requests_of(server)
    assert sent.line == "PUT / HTTP/1.1"
    assert sent.body == '{"a":"ü"}'.encode()
    assert sent.headers["content-type"] == "application/json"
    assert sent.headers["x-two"] == "zwei"
    assert sent.headers["accept-encoding"] == "identity"
    assert (answer.status, answer.body, answer.success) == (201, "{}", True)


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
def test_every_method_is_sent_and_answered(method: str) -> None:
    with RawServer(_answer_by_method) as server:
        answer = fetch(server.url, method=method)

    assert requests_of(server)[0].line == f"{method} / HTTP/1.1"
    assert (answer.status, answer.body) == (200, "" if method == "HEAD" else "ok")


def _answer_by_method(peer: Peer) -> None:
    request = peer.read_request()
    assert request is not None
    peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n" + (b"" if request.line.startswith("HEAD") else b"ok"))
    peer.wait_hang_up()


def test_nothing_is_taken_from_the_environment_and_no_cookie_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login me password netrc-secret\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))
    with RawServer(answers(b"ok", "Set-Cookie: a=b; Path=/")) as server, RawServer(answers(b"proxy")) as proxy:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url)
        monkeypatch.delenv("no_proxy", raising=False)
        made = tool()
        assert [fetch(server.url, made).body for _ in range(2)] == ["ok", "ok"]

    assert proxy.peers == []
    assert all("authorization" not in sent.headers and "cookie" not in sent.headers for sent in requests_of(server))


def test_no_connection_is_shared_by_two_calls() -> None:
    with RawServer(answers(b"ok")) as server:
        made = tool()
        assert [fetch(server.url, made).body for _ in range(3)] == ["ok"] * 3

        assert [len(peer.requests) for peer in server.peers] == [1, 1, 1]
        wait_all_gone(server)


def wait_all_gone(server: RawServer) -> None:
    assert all(peer.gone.wait(PATIENCE_S) for peer in server.peers)


def test_https_is_spoken_and_a_certificate_that_nobody_vouches_for_is_refused(tmp_path: Path) -> None:
    context, certificate = self_signed(str(tmp_path))
    with RawServer(answers(b"safe"), context) as server:
        assert fetch(server.url, tool(verify=certificate)).body == "safe"
        with pytest.raises(
            ToolFailed, match=r"^no secure connection \(TLS\) to 127\.0\.0\.1:\d+: check the host's cert"
        ):
            fetch(server.url)


def test_it_says_what_it_takes_and_how_it_stops() -> None:
    made = HttpRequest()
    checker = Draft202012Validator(made.parameters)

    Draft202012Validator.check_schema(made.parameters)
    assert (made.name, made.stops) == ("http_request", Stops.ABORTS)
    assert checker.is_valid({"url": "x", "method": "POST", "headers": {"a": "b"}, "body": "c", "timeout_ms": 1})
    for wrong in ({}, {"url": 1}, {"url": "x", "method": "TRACE"}, {"url": "x", "method": "get"}, {"url": "x", "a": 1},
                  {"url": "x", "headers": {"a": 1}}, {"url": "x", "body": {}}, {"url": "x", "timeout_ms": 0}):  # fmt: skip
        assert not checker.is_valid(wrong)


def test_the_toolbox_makes_it_with_the_limits_of_the_settings() -> None:
    fields = {"tools_allowed": "http_request", "http_private_networks": "127.0.0.1", "tool_output_bytes": 1024}
    box = Toolbox(Settings(_env_file=None, tool_timeout_ms=700_000, **fields))
    made = box.of(["http_request"])["http_request"]
    assert isinstance(made, HttpRequest)
    assert made.parameters["properties"]["timeout_ms"]["default"] == 700_000
    with RawServer(answers(b"x" * 2000)) as server:
        assert len(fetch(server.url, made).body) == 1024


# -- bodies ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content_type", "data", "shown"),
    [
        ("text/html; charset=iso-8859-1", b"gr\xfcn", "grün"),
        ("text/plain; charset=utf-16", "漢字".encode("utf-16"), "漢字"),
        ("text/plain; charset=punycode", b"abc-", "abc-"),
        ("text/plain; charset=no/such..thing\0", b"abc", "abc"),
        ("text/plain; charset=hex", b"6162", "6162"),
        ("application/json", b'\xef\xbb\xbf{"a":1}', '{"a":1}'),
        ("application/problem+json", b"a\xffb", "a\ufffdb"),
        ("image/svg+xml", b"<svg/>", "<svg/>"),
        ("application/octet-stream", "grün".encode(), "grün"),
        ("", b"plain", "plain"),
        ("application/octet-stream", b"a\0b", "[3 bytes of application/octet-stream, which is no text]"),
        ("application/x-thing", b"\xff\xfe\xfd", "[3 bytes of application/x-thing, which is no text]"),
        ("image/png", b"text all the same", "[17 bytes of image/png, which is no text]"),
        ("???;;;=", b"odd", "odd"),
    ],
)
def test_text_is_shown_as_text_and_other_bytes_are_described(content_type: str, data: bytes, shown: str) -> None:
    with RawServer(answers(data, f"Content-Type: {content_type}" if content_type else "X: y")) as server:
        call = HttpCall(server.url)

        assert call.answer().body == shown
        assert call.said() == ("" if "no text" in shown else shown)


def test_a_compressed_body_is_decoded_and_one_that_cannot_be_is_described() -> None:
    squeezed = gzip.compress(b"long " * 100)
    with RawServer(answers(squeezed, "Content-Type: text/plain\r\nContent-Encoding: gzip")) as server:
        assert fetch(server.url).body == "long " * 100
    with RawServer(answers(b"\xff\0\1", "Content-Type: text/plain\r\nContent-Encoding: compress, odd")) as server:
        assert "no text" in fetch(server.url).body
    with RawServer(answers(b"not compressed", "Content-Type: text/plain\r\nContent-Encoding: gzip")) as server:
        answer = fetch(server.url)
    assert "does not match its content encoding" in answer.error
    assert (answer.status, answer.success) == (200, False)


def test_a_long_text_is_shortened_in_its_middle() -> None:
    with RawServer(answers(b"BEGIN" + b"x" * 300_000 + b"END")) as server:
        answer = fetch(server.url)

    assert answer.body.startswith("BEGINxxx")
    assert answer.body.endswith("xxxEND")
    assert len(answer.body.encode()) <= 64 * 1024
    assert "bytes left out" in answer.body
    assert (answer.truncated, answer.success, "error" in answer.fields) == (True, True, False)


def test_headers_beyond_a_bound_are_left_out() -> None:
    many = "\r\n".join(f"X-{number}: {'v' * 5000}" for number in range(40))
    with RawServer(answers(b"ok", f"First: 1\r\n{many}")) as server:
        answer = fetch(server.url)

    assert answer.headers["First"] == "1"
    assert answer.headers["X-0"] == "v" * 1024
    assert len(json.dumps(answer.headers)) < 10_000
    assert answer.body == "ok"


def test_a_character_that_is_cut_between_two_reads_stays_whole_and_text_is_handed_on_at_once() -> None:
    def script(peer: Peer) -> None:
        peer.read_request()
        peer.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 6\r\n\r\na\xf0\x9f")
        peer.go_on.wait(PATIENCE_S)
        peer.send(b"\x99\x82b")
        peer.wait_hang_up()

    with RawServer(script) as server:
        call = HttpCall(server.url).wait_said("a")
        server.peer().go_on.set()

        assert call.answer().body == "a🙂b"
        assert call.said() == "a🙂b"


# -- limits ----------------------------------------------------------------------------------


@pytest.mark.parametrize("framing", ["Content-Length: 900000000", "X: y", "Transfer-Encoding: chunked"])
def test_at_the_cap_the_call_is_ended_and_the_server_sees_it(framing: str) -> None:
    def endless(peer: Peer) -> None:
        peer.read_request()
        peer.send(f"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n{framing}\r\n\r\n".encode())
        while True:
            peer.chunk(b"x" * 1000) if "chunked" in framing else peer.send(b"x" * 1000)

    with RawServer(endless) as server:
        call = HttpCall(server.url, tool(output_cap=100_000))
        answer = call.answer()
        wait_seen_close(server)

    assert len(call.said()) == 100_000
    assert answer.error == "the answer was longer than 100000 bytes; the request was ended"
    assert (answer.status, answer.success, answer.truncated, answer.result.is_error) == (200, False, True, True)
    assert "interrupted" not in answer.fields
    assert call.run.limit_hit is CauseWord.OUTPUT_LIMIT
    assert call.run.outcome is Outcome.ABORTED


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "gzip, gzip"])
def test_a_decompression_bomb_stops_at_the_cap(encoding: str) -> None:
    size = 200 << 20
    packer = zlib.compressobj(9, zlib.DEFLATED, 31 if "gzip" in encoding else 15)
    bomb = b"".join(packer.compress(b"\0" * (1 << 20)) for _ in range(size >> 20)) + packer.flush()
    if "," in encoding:
        bomb = gzip.compress(bomb)
    with RawServer(answers(bomb, f"Content-Type: text/plain\r\nContent-Encoding: {encoding}")) as server:
        call = HttpCall(server.url)
        answer = call.answer()

    assert len(call.said()) == 1 << 20
    assert "longer than 1048576 bytes" in answer.error


def test_a_body_that_trickles_is_ended_by_the_time_limit_and_what_came_is_kept() -> None:
    def trickle(peer: Peer) -> None:
        peer.read_request()
        peer.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 100000\r\n\r\n")
        while True:
            peer.send(b"x")
            time.sleep(0.02)  # what makes it a trickle

    with RawServer(trickle) as server:
        call = HttpCall(server.url, timeout_ms=500)
        answer = call.answer()
        wait_seen_close(server)

    assert answer.error == "the request was ended after 0.5 s"
    assert answer.body == call.said()
    assert set(answer.body) == {"x"}
    assert 0.5 <= answer.execution_time < 10
    assert "interrupted" not in answer.fields
    assert call.run.limit_hit is CauseWord.DEADLINE
    assert call.run.outcome is Outcome.ABORTED


def test_a_server_that_never_answers_meets_the_time_limit() -> None:
    with RawServer(says(b"")) as server:
        call = HttpCall(server.url, timeout_ms=200)
        answer = call.answer()
        wait_seen_close(server)

    assert (answer.status, answer.body, answer.headers, answer.success) == (None, "", {}, False)
    assert answer.error == "the request was ended after 0.2 s"
    assert call.run.outcome is Outcome.ABORTED


def test_a_host_that_accepts_no_connection_meets_the_time_limit_and_nothing_was_sent() -> None:
    with black_hole() as port:
        call = HttpCall(f"http://127.0.0.1:{port}", tool(default_timeout_ms=200))
        answer = call.answer()

    assert (answer.status, answer.error) == (None, "the request was ended after 0.2 s")
    assert call.run.outcome is Outcome.NOT_STARTED


# -- failures --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (None, "hung up without an answer"),
        (b"SSH-2.0-OpenSSH\r\n", "does not answer in HTTP"),
        (b"HTTP/1.1 200 OK\r\nA: " + b"x" * 70_000, "does not answer in HTTP"),
        (b"HTTP/1.1 200 OK\r\n" + b"A: x\r\n" * 200, "does not answer in HTTP"),
    ],
)  # fmt: skip
def test_a_server_without_an_answer_is_told_in_words(sent: bytes | None, words: str) -> None:
    def script(peer: Peer) -> None:
        peer.read_request()
        if sent is not None:
            peer.send(sent)

    with RawServer(script) as server, pytest.raises(ToolFailed, match=words) as failure:
        fetch(server.url)
    _has_no_internals(failure.value)


def test_a_refused_connection_an_unknown_name_and_a_plain_server_are_told_in_words() -> None:
    with RawServer(lambda peer: peer.send(b"HTTP/1.1 400 No\r\n\r\n")) as server:
        with pytest.raises(ToolFailed, match=r"^no secure connection \(TLS\)") as failure:
            fetch(server.url.replace("http:", "https:"))
        _has_no_internals(failure.value)
    with pytest.raises(ToolFailed, match="refuses connections") as failure:
        fetch(server.url)
    _has_no_internals(failure.value)
    with pytest.raises(ToolFailed, match=r"the name of no-such-host\.invalid is not known") as failure:
        fetch("http://no-such-host.invalid/")
    _has_no_internals(failure.value)


def _has_no_internals(failure: ToolFailed) -> None:
    assert not any(word in failure.detail for word in ("Error", "Errno", "urllib3", "object at", "Max retries", "_ssl"))
    assert len(failure.detail) < 200


@pytest.mark.parametrize("framing", ["Content-Length: 100", "Transfer-Encoding: chunked"])
def test_a_body_that_breaks_off_is_no_success_and_what_came_is_kept(framing: str) -> None:
    def script(peer: Peer) -> None:
        peer.read_request()
        peer.send(f"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n{framing}\r\n\r\n".encode())
        peer.chunk(b"half") if "chunked" in framing else peer.send(b"half")

    with RawServer(script) as server:
        call = HttpCall(server.url)
        answer = call.answer()

    assert (answer.status, answer.body, answer.success, answer.truncated) == (200, "half", False, True)
    assert "broke off" in answer.error
    assert "interrupted" not in answer.fields
    assert call.run.outcome is None


def test_a_call_leaves_no_thread_and_no_descriptor_behind() -> None:
    with RawServer(answers(b"ok")) as server:
        made = tool()
        fetch(server.url, made)
        wait_all_gone(server)
        threads = _threads()
        with leaves_nothing():
            for _ in range(20):
                fetch(server.url, made)
            wait_all_gone(server)
        assert _threads() <= threads


def _threads() -> set[str]:
    """But the server's own."""
    return {thread.name for thread in threading.enumerate() if not thread.name.startswith("raw-")}
