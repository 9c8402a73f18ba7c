"""Cancelling a call of the stand-in gateway: by its token, or by hanging up."""

import asyncio
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.chat_client import asking, text_of
from tests.support.model_server import ModelServer, script


@pytest.fixture(scope="module")
def gateway() -> Iterator[ModelServer]:
    with ModelServer() as server:
        yield server


@pytest.mark.parametrize("stream", [True, False])
def test_a_silent_call_answers_499_once_its_token_is_named(gateway: ModelServer, stream: bool) -> None:
    key = f"silent-{stream}"
    with asking(gateway.url, script("silent", key=key), token=key, stream=stream) as asked:
        gateway.wait_open(1, key=key)
        assert gateway.cancel(key) == "cancelled"
        assert asked.status == 499
        assert asked.json()["error"]["code"] == 499
    [call] = gateway.wait_closed(1, key=key)
    assert (call.close_reason, call.status, call.token) == ("cancelled", 499, key)
    assert call.asked_to_cancel_at is not None
    assert call.closed_at is not None
    assert call.asked_to_cancel_at <= call.closed_at


def test_a_stream_that_is_cancelled_ends_with_the_error_frame(gateway: ModelServer) -> None:
    with asking(gateway.url, script("trickle", tokens=10_000, interval_ms=1, key="cut"), token="cut") as asked:
        gateway.wait_tokens(10, key="cut")
        assert gateway.cancel("cut") == "cancelled"
        *events, last = asked.events()
    assert last["error"]["code"] == 499
    assert text_of(events).startswith("t1 t2 ")
    [call] = gateway.wait_closed(1, key="cut")
    assert call.tokens_after_stop == 0
    assert call.tokens_sent == len(events) - 1
    assert call.tokens_after(call.asked_to_cancel_at or 0) == 0


def test_a_cancel_inside_a_character_still_gives_a_readable_error_frame(gateway: ModelServer) -> None:
    with asking(gateway.url, script("split", pause_ms=60_000, key="half"), token="half") as asked:
        body = b""
        while not body.endswith(b"\xf0\x9f"):
            body += asked.response.read1()
        assert gateway.cancel("half") == "cancelled"
        body += asked.response.read()
    assert json.loads(body.split(b"\n\n")[-2].removeprefix(b"data: "))["error"]["code"] == 499


def test_a_second_cancel_says_already_cancelled(gateway: ModelServer) -> None:
    with asking(gateway.url, script("silent", key="twice"), token="twice") as asked:
        gateway.wait_open(1, key="twice")
        assert [gateway.cancel("twice") for _ in range(3)] == ["cancelled", *["already_cancelled"] * 2]
        assert asked.status == 499


def test_an_unknown_token_is_a_404(gateway: ModelServer) -> None:
    assert gateway.request("POST", "/v1/cancel", {"cancellation_token": "nobody"}) == (404, {"status": "unknown"})


def test_the_token_of_a_finished_call_is_unknown(gateway: ModelServer) -> None:
    with asking(gateway.url, script("nothing"), token="finished") as asked:
        asked.events()
    assert gateway.cancel("finished") == "unknown"


@pytest.mark.parametrize("body", [{}, {"cancellation_token": 1}, {"cancellation_token": ""}, [], "text"])
def test_a_wrong_cancel_body_is_a_400(gateway: ModelServer, body: object) -> None:
    assert gateway.request("POST", "/v1/cancel", body)[0] == 400


@pytest.mark.parametrize("name", ["silent", "prefill", "nonstream", "trickle"])
def test_a_hang_up_closes_the_call_in_every_phase(gateway: ModelServer, name: str) -> None:
    with asking(gateway.url, script(name, key=f"gone-{name}")) as asked:
        gateway.wait_open(1, key=f"gone-{name}")
        asked.hang_up()
        [call] = gateway.wait_closed(1, key=f"gone-{name}")
    assert call.close_reason == "client_gone"
    assert call.asked_to_cancel_at is None


def test_late_agrees_and_still_sends_a_last_chunk(gateway: ModelServer) -> None:
    with asking(gateway.url, script("late", after_ms=60, interval_ms=20, key="late"), token="late") as asked:
        gateway.wait_tokens(1, key="late")
        assert gateway.cancel("late") == "cancelled"
        *events, last = asked.events()
    assert text_of(events).endswith("still too late")
    assert last["error"]["code"] == 499
    assert gateway.wait_closed(1, key="late")[0].tokens_after_stop >= 2


def test_late_may_even_finish(gateway: ModelServer) -> None:
    with asking(gateway.url, script("late", end="finish", key="fin"), token="fin") as asked:
        gateway.wait_tokens(1, key="fin")
        assert gateway.cancel("fin") == "cancelled"
        assert asked.events()[-1] == "[DONE]"
    assert gateway.wait_closed(1, key="fin")[0].close_reason == "finished"


def test_refuse_cancel_answers_500_and_goes_on(gateway: ModelServer) -> None:
    with asking(gateway.url, script("refuse_cancel", tokens=10_000, interval_ms=5, key="no"), token="no") as asked:
        gateway.wait_open(1, key="no")
        assert gateway.request("POST", "/v1/cancel", {"cancellation_token": "no"})[0] == 500
        tokens = gateway.calls(key="no")[0].tokens_sent
        [call] = gateway.wait_tokens(tokens + 5, key="no")
        assert call.is_open
        assert call.tokens_after_stop >= 5
        asked.hang_up()
        gateway.wait_open(0, key="no")


def test_a_deaf_call_lets_the_cancel_request_hang_until_it_is_given_up(gateway: ModelServer) -> None:
    with asking(gateway.url, script("silent", cancel="deaf", key="deaf"), token="deaf") as asked:
        gateway.wait_open(1, key="deaf")
        with ThreadPoolExecutor(1) as pool:
            body = {"cancellation_token": "deaf"}
            given_up = pool.submit(gateway.request, "POST", "/v1/cancel", body, timeout_s=0.3)
            gateway.wait_asked(1, key="deaf")
            with pytest.raises(TimeoutError):
                given_up.result(20)
        assert gateway.calls(key="deaf")[0].is_open
        asked.hang_up()
        assert gateway.wait_closed(1, key="deaf")[0].close_reason == "client_gone"


def test_a_thousand_silent_calls_are_cancelled_at_once(gateway: ModelServer) -> None:
    # In a thread of its own: the browser tests keep an event loop on the main one.
    with ThreadPoolExecutor(1) as pool:
        pool.submit(lambda: asyncio.run(asyncio.wait_for(_cancel_many(gateway, 1000), 60))).result()
    calls = gateway.wait_closed(1000, key="many")
    assert {call.close_reason for call in calls} == {"cancelled"}
    first = min(call.asked_to_cancel_at or 0 for call in calls)
    last = max(call.closed_at or 0 for call in calls)
    # Measured 0.1 s; the limit leaves room for a busy machine.
    assert last - first < 5


async def _cancel_many(gateway: ModelServer, number: int) -> None:
    host, _, port = gateway.url.removeprefix("http://").partition(":")
    message = {"role": "user", "content": script("silent", key="many")}

    async def send(path: str, body: object) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(host, int(port))
        data = json.dumps(body).encode()
        writer.write(f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
        return reader, writer

    async def status(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        line = await reader.readline()
        writer.close()
        await writer.wait_closed()
        return line.split()[1]

    async def cancel(token: str) -> bytes:
        return await status(*await send("/v1/cancel", {"cancellation_token": token}))

    tokens = [f"many-{n}" for n in range(number)]
    metadata = [{"cancellation_token": token} for token in tokens]
    bodies = [{"stream": True, "messages": [message], "metadata": each} for each in metadata]
    calls = await asyncio.gather(*(send("/v1/chat/completions", body) for body in bodies))
    await asyncio.to_thread(gateway.wait_open, number, key="many")
    assert set(await asyncio.gather(*map(cancel, tokens))) == {b"200"}
    assert set(await asyncio.gather(*(status(*call) for call in calls))) == {b"499"}
