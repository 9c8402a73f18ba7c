"""Name look-up on a few threads of its own."""

import socket
import threading
from typing import Any

import pytest

from core.cancellation import Cancelled, Level, Scope
from core.network.resolver import Resolver
from tests.support.provider_kit import USER
from tests.support.raw_server import PATIENCE_S


class SlowNames:
    """Stands in for ``getaddrinfo``: notes each look-up and holds it until told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[str] = []
        self.count = threading.Semaphore(0)
        self.go_on = threading.Event()
        self.answer: Any = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("192.0.2.1", 0))]
        monkeypatch.setattr(socket, "getaddrinfo", self.look_up)

    def look_up(self, host: str, *_: Any, **__: Any) -> Any:
        self.asked.append(host)
        self.count.release()
        self.go_on.wait(PATIENCE_S)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> SlowNames:
    return SlowNames(monkeypatch)


class Caller:
    """A look-up on a thread."""

    def __init__(self, resolver: Resolver, host: str, port: int = 80) -> None:
        self.scope = Scope.root().open(Level.CALL, host)
        self.result: Any = None

        def run() -> None:
            try:
                self.result = resolver.look_up(host, port, socket.AF_UNSPEC, self.scope, PATIENCE_S)
            except BaseException as error:
                self.result = error

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()

    def wait(self) -> Any:
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        return self.result


def test_a_numeric_host_needs_no_thread() -> None:
    before = threading.active_count()
    scope = Scope.root()

    found = Resolver(max_threads=0).look_up("127.0.0.1", 80, socket.AF_UNSPEC, scope, None)

    assert found[0][4] == ("127.0.0.1", 80)
    assert Resolver(max_threads=0).look_up("::1", 80, socket.AF_UNSPEC, scope, None)[0][4][:2] == ("::1", 80)
    assert threading.active_count() == before


def test_concurrent_look_ups_of_one_host_share_one(names: SlowNames) -> None:
    resolver = Resolver()
    callers = [Caller(resolver, "a.test", port) for port in (80, 443, 8080)]
    assert names.count.acquire(timeout=PATIENCE_S)

    names.go_on.set()

    assert [caller.wait()[0][4] for caller in callers] == [
        ("192.0.2.1", 80),
        ("192.0.2.1", 443),
        ("192.0.2.1", 8080),
    ]


def test_no_more_than_the_allowed_threads_look_up_at_a_time_and_all_are_answered(names: SlowNames) -> None:
    resolver = Resolver(max_threads=3)
    callers = [Caller(resolver, f"h{number}.test") for number in range(10)]
    for _ in range(3):
        assert names.count.acquire(timeout=PATIENCE_S)
    assert len(names.asked) == 3

    names.go_on.set()

    assert all(caller.wait()[0][4][0] == "192.0.2.1" for caller in callers)
    assert sorted(names.asked) == sorted({f"h{number}.test" for number in range(10)})


def test_a_stop_releases_its_caller_and_nobody_else(names: SlowNames) -> None:
    resolver = Resolver()
    stopped, other = Caller(resolver, "a.test"), Caller(resolver, "a.test")
    assert names.count.acquire(timeout=PATIENCE_S)

    stopped.scope.cancel(USER)

    assert isinstance(stopped.wait(), Cancelled)
    names.go_on.set()
    assert other.wait()[0][4] == ("192.0.2.1", 80)


def test_an_unknown_name_fails_for_all_and_is_asked_again_next_time(names: SlowNames) -> None:
    resolver = Resolver()
    names.answer = socket.gaierror(socket.EAI_NONAME, "no such name")
    names.go_on.set()

    assert isinstance(Caller(resolver, "a.test").wait(), socket.gaierror)
    assert isinstance(Caller(resolver, "a.test").wait(), socket.gaierror)
    assert names.asked == ["a.test", "a.test"]


def test_a_name_without_an_address_is_unknown(names: SlowNames) -> None:
    names.answer = []
    names.go_on.set()

    assert isinstance(Caller(Resolver(), "a.test").wait(), socket.gaierror)


def test_a_name_that_cannot_be_one_is_unknown() -> None:
    assert isinstance(Caller(Resolver(), "a" * 70 + ".test").wait(), socket.gaierror)


def test_a_look_up_that_takes_too_long_is_given_up(names: SlowNames) -> None:
    with pytest.raises(TimeoutError):
        Resolver().look_up("a.test", 80, socket.AF_UNSPEC, Scope.root(), 0.05)
    names.go_on.set()
