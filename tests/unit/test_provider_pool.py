"""Connections are reused, given back, and never touched by the stop of an earlier call."""

import gc
import os
import time
from collections.abc import Callable

import pytest

from core.cancellation import Cancelled
from core.provider.openai import OpenAIProvider
from core.provider.provider import Finish, Text
from tests.support.provider_kit import (
    DONE,
    HELLO,
    STOP,
    USER,
    Running,
    frame,
    good_reply,
    new_call,
    reply,
    text_of,
)
from tests.support.raw_server import PATIENCE_S, Peer, RawServer


def test_one_connection_serves_many_calls() -> None:
    with RawServer(good_reply) as server:
        provider = OpenAIProvider(f"{server.url}/v1")

        for _ in range(5):
            assert reply(provider) == [Text("ok"), Finish("stop")]

        assert len(server.peers) == 1


def test_a_body_whose_end_comes_late_does_not_hold_the_reply_up() -> None:
    def script(peer: Peer) -> None:
        peer.read_request()
        peer.begin_stream()
        peer.chunk(frame("ok") + STOP + DONE)
        peer.wait_hang_up()

    with RawServer(script) as server:
        begun = time.monotonic()

        assert text_of(reply(OpenAIProvider(f"{server.url}/v1"))) == "ok"

        assert time.monotonic() - begun < 3
        assert server.peer().hung_up.wait(PATIENCE_S)


def test_a_connection_that_the_server_closed_meanwhile_is_replaced() -> None:
    def one_reply(peer: Peer) -> None:
        peer.read_request()
        peer.begin_stream()
        peer.chunk(frame("ok") + STOP + DONE)
        peer.chunk(b"")
        peer.reached.set()

    with RawServer(one_reply) as server:
        provider = OpenAIProvider(f"{server.url}/v1")
        reply(provider)
        assert server.peer().reached.wait(PATIENCE_S)
        server.peer().sock.close()

        assert text_of(reply(provider)) == "ok"
        assert len(server.peers) == 2


def test_a_late_stop_of_the_first_call_does_not_hurt_the_second_on_the_same_connection() -> None:
    def script(peer: Peer) -> None:
        peer.read_request()
        peer.begin_stream()
        peer.chunk(frame("first") + STOP + DONE)
        peer.chunk(b"")
        peer.read_request()
        peer.begin_stream()
        peer.chunk(frame("sec"))
        peer.go_on.wait(PATIENCE_S)
        peer.chunk(frame("ond") + STOP + DONE)
        peer.chunk(b"")

    with RawServer(script) as server:
        provider = OpenAIProvider(f"{server.url}/v1")
        first = new_call(provider)
        assert text_of(list(provider.stream(HELLO, first))) == "first"
        second = Running(provider)
        assert second.first_delta.wait(PATIENCE_S)

        first.abort()
        first.wire.shut()
        first.scope.cancel(USER)

        server.peer().go_on.set()
        second.wait()
        assert second.error is None
        assert second.text == "second"
        assert len(server.peers) == 1


def silent(peer: Peer) -> None:
    peer.read_request()
    peer.reached.set()
    peer.wait_hang_up()


def streaming(peer: Peer) -> None:
    peer.read_request()
    peer.begin_stream()
    peer.chunk(frame("x"))
    peer.reached.set()
    peer.wait_hang_up()


@pytest.mark.parametrize("begin", [silent, streaming])
def test_after_200_stopped_calls_on_a_pool_of_five_the_next_is_quick_and_no_descriptor_leaks(
    begin: Callable[[Peer], None],
) -> None:
    rounds, at_a_time = 40, 5

    def script(peer: Peer) -> None:
        if peer.number < rounds * at_a_time:
            begin(peer)
        else:
            good_reply(peer)

    with RawServer(script) as server:
        provider = OpenAIProvider(f"{server.url}/v1", pool_size=5)
        before = len(os.listdir("/proc/self/fd"))
        for round_number in range(rounds):
            running = [Running(provider) for _ in range(at_a_time)]
            for number in range(at_a_time):
                assert server.peer(round_number * at_a_time + number).reached.wait(PATIENCE_S)
            for one in running:
                one.stop()
            for one in running:
                assert type(one.wait().error) is Cancelled
        begun = time.monotonic()

        assert text_of(reply(provider)) == "ok"

        assert time.monotonic() - begun < 1
        provider.close()
        for peer in server.peers:
            assert peer.gone.wait(PATIENCE_S)
        assert all(peer.hung_up.is_set() for peer in server.peers[:-1])
        gc.collect()
        assert len(os.listdir("/proc/self/fd")) <= before + 2


def test_stops_at_random_moments_of_short_calls_leave_the_pool_sound() -> None:
    with RawServer(good_reply) as server:
        provider = OpenAIProvider(f"{server.url}/v1", pool_size=5)
        ends = set()
        for number in range(200):
            running = Running(provider)
            # The point is an uncontrolled race with the whole exchange, which takes about a millisecond.
            time.sleep((number % 20) / 10_000)
            running.stop()
            running.wait()
            ends.add(type(running.error))

        assert ends <= {Cancelled, type(None)}
        assert text_of(reply(provider)) == "ok"
