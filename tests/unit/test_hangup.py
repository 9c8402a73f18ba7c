"""A client that hangs up is noticed at once, and only the one that did."""

import os
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from api.hangup import HangupWatch

LIMIT_S = 10


class Pair:
    """A connection: what the server holds, and the client at the other end."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.client = socket.create_connection(listener.getsockname())
            self.server, _ = listener.accept()
        self.gone = threading.Event()

    def close(self) -> None:
        self.client.close()
        self.server.close()


@pytest.fixture
def watcher() -> HangupWatch:
    return HangupWatch()


@pytest.fixture
def pairs() -> Iterator[list[Pair]]:
    made = [Pair() for _ in range(3)]
    yield made
    for pair in made:
        pair.close()


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_a_client_that_closes_is_noticed_and_the_others_are_not(watcher: HangupWatch, pairs: list[Pair]) -> None:
    for pair in pairs:
        watcher.watch(pair.server, pair.gone.set)

    pairs[1].client.close()

    assert pairs[1].gone.wait(LIMIT_S)
    assert not pairs[0].gone.is_set()
    assert not pairs[2].gone.is_set()


def test_data_that_the_server_has_not_read_does_not_hide_the_hang_up(watcher: HangupWatch, pairs: list[Pair]) -> None:
    pair = pairs[0]
    pair.client.sendall(b"more")
    watcher.watch(pair.server.fileno(), pair.gone.set)

    pair.client.shutdown(socket.SHUT_WR)

    assert pair.gone.wait(LIMIT_S)


def test_a_client_that_left_before_the_watch_began_is_noticed(watcher: HangupWatch, pairs: list[Pair]) -> None:
    pairs[0].client.close()
    watcher.watch(pairs[0].server, pairs[0].gone.set)
    assert pairs[0].gone.wait(LIMIT_S)

    pairs[1].server.close()
    watcher.watch(pairs[1].server, pairs[1].gone.set)
    assert pairs[1].gone.is_set()


def test_a_released_watch_says_nothing_and_holds_no_descriptor(watcher: HangupWatch, pairs: list[Pair]) -> None:
    watcher.watch(pairs[2].server, pairs[2].gone.set)
    before = open_descriptors()
    with watcher.watch(pairs[0].server, pairs[0].gone.set) as watch:
        assert open_descriptors() == before + 1
    watch.release()
    assert open_descriptors() == before

    pairs[0].client.close()
    pairs[2].client.close()

    # The last event is noticed, so the first one would have been.
    assert pairs[2].gone.wait(LIMIT_S)
    assert not pairs[0].gone.is_set()


def test_the_release_lets_the_connection_end(watcher: HangupWatch, pairs: list[Pair]) -> None:
    pair = pairs[0]
    watch = watcher.watch(pair.server, pair.gone.set)
    watch.release()
    pair.server.close()

    pair.client.settimeout(LIMIT_S)
    assert pair.client.recv(1) == b""


def test_a_descriptor_number_that_is_used_again_is_not_taken_for_the_old_client(watcher: HangupWatch) -> None:
    for _ in range(200):
        old, new = Pair(), Pair()
        watch = watcher.watch(old.server, old.gone.set)
        old.client.close()
        watch.release()
        again = watcher.watch(new.server, new.gone.set)
        again.release()
        new.close()
        old.close()
        assert not new.gone.is_set()


def test_a_callback_that_fails_does_not_end_the_watching(watcher: HangupWatch, pairs: list[Pair]) -> None:
    def fail() -> None:
        raise RuntimeError("on purpose")

    watcher.watch(pairs[0].server, fail)
    watcher.watch(pairs[1].server, pairs[1].gone.set)

    pairs[0].client.close()
    pairs[1].client.close()

    assert pairs[1].gone.wait(LIMIT_S)


def test_watching_costs_no_processor_time(watcher: HangupWatch, pairs: list[Pair]) -> None:
    for pair in pairs:
        watcher.watch(pair.server, pair.gone.set)
        pair.client.sendall(b"bytes that nobody reads")
    pairs[0].client.shutdown(socket.SHUT_WR)
    assert pairs[0].gone.wait(LIMIT_S)

    before = time.process_time()
    # Time has to pass: what is shown is that nothing happens in it.
    time.sleep(0.3)
    assert time.process_time() - before < 0.1
