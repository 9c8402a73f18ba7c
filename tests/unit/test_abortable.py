"""The socket that a stop can shut."""

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from core.network.abortable import AbortableSocket
from tests.support.raw_server import PATIENCE_S, black_hole

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = socket.create_connection(listener.getsockname())
        theirs, _ = listener.accept()
        with ours, theirs:
            ours.settimeout(PATIENCE_S)
            theirs.settimeout(PATIENCE_S)
            yield ours, theirs


def test_shut_wakes_a_blocked_reader_and_the_peer_sees_it(pair: Pair) -> None:
    ours, theirs = pair
    wire = AbortableSocket()
    wire.attach(ours)
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append(ours.recv(1)), daemon=True)
    reader.start()

    wire.shut()

    reader.join(PATIENCE_S)
    assert got == [b""]
    assert theirs.recv(1) == b""
    wire.detach()


def test_a_call_that_was_shut_before_it_had_a_socket_gets_none(
    pair: Pair,
) -> None:
    ours, theirs = pair
    wire = AbortableSocket()
    wire.shut()

    with pytest.raises(ConnectionAbortedError):
        wire.attach(ours)

    assert theirs.recv(1) == b""
    wire.detach()


def test_shut_can_be_repeated_also_after_the_socket_is_closed(
    pair: Pair,
) -> None:
    ours, theirs = pair
    wire = AbortableSocket()
    wire.attach(ours)
    ours.close()

    wire.shut()
    wire.shut()

    assert theirs.recv(1) == b""
    wire.detach()
    wire.shut()
    wire.detach()


def test_a_late_shut_does_not_reach_a_socket_that_was_let_go(
    pair: Pair,
) -> None:
    ours, theirs = pair
    wire = AbortableSocket()
    wire.attach(ours)
    wire.detach()

    wire.shut()

    ours.sendall(b"x")
    assert theirs.recv(1) == b"x"


def test_attaching_another_socket_forgets_the_first_and_leaks_no_descriptor(
    pair: Pair,
) -> None:
    ours, theirs = pair
    before = len(os.listdir("/proc/self/fd"))
    wire = AbortableSocket()
    for _ in range(50):
        wire.attach(ours)
    wire.attach(theirs)

    wire.detach()

    assert len(os.listdir("/proc/self/fd")) == before


def test_a_shut_between_attach_and_connect_ends_the_connect_at_once() -> None:
    with black_hole() as port, socket.socket() as sock:
        sock.settimeout(PATIENCE_S)
        wire = AbortableSocket()
        wire.attach(sock)
        wire.shut()
        begun = time.monotonic()

        with contextlib.suppress(OSError):
            sock.connect(("127.0.0.1", port))

        with pytest.raises(ConnectionAbortedError):
            wire.check()
        assert time.monotonic() - begun < 1
        wire.detach()
