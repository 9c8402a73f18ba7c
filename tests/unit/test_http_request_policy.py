"""Where the HTTP tool goes and where not: addresses after look-up, redirects, URLs and headers."""

import socket
from collections.abc import Iterator
from typing import Any

import pytest

from core.settings import Settings
from core.tool.http.policy import AddressPolicy
from core.tool.http_request import HttpRequest
from core.tool.tool import ToolFailed
from tests.support.http_kit import HttpCall, answers, fetch, redirects, requests_of, tool
from tests.support.raw_server import PATIENCE_S, RawServer

NOT_PUBLIC = "has no public address"

# -- addresses -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "127.255.255.254", "10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1", "169.254.169.254",
        "100.64.0.1", "100.100.100.200", "0.0.0.0", "0.1.2.3", "192.0.0.192", "192.0.2.1", "192.88.99.1", "198.18.0.1",
        "198.51.100.1", "203.0.113.1", "224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255",
        "::", "::1", "fe80::1", "fe80::1%eth0", "fc00::1", "fd00:ec2::254", "fec0::1", "ff02::1", "ff0e::1",
        "2001:db8::1", "3fff::1", "2001::1", "2002:7f00:1::", "100::1", "5f00::1", "4000::1",
        "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254", "::127.0.0.1", "::ffff:0:127.0.0.1",
        "64:ff9b::7f00:1", "64:ff9b::10.0.0.1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::808:808",
    ],
)  # fmt: skip
def test_an_address_that_is_not_public_is_refused(address: str) -> None:
    assert not AddressPolicy().may_reach(address)
    assert AddressPolicy(["0.0.0.0/0", "::/0"]).may_reach(address)


@pytest.mark.parametrize(
    "address",
    ["8.8.8.8", "1.1.1.1", "172.32.0.1", "100.128.0.1", "169.253.1.1", "223.255.255.254", "2606:4700::1111",
     "2a00:1450:4001::1", "::ffff:8.8.8.8", "64:ff9b::808:808"],
)  # fmt: skip
def test_a_public_address_is_allowed(address: str) -> None:
    assert AddressPolicy().may_reach(address)


def test_only_the_networks_that_are_allowed_are_opened() -> None:
    policy = AddressPolicy(["10.1.0.0/16", "127.0.0.1", "fd00::/8"])

    assert all(map(policy.may_reach, ("10.1.2.3", "::ffff:10.1.2.3", "127.0.0.1", "fd12::1", "8.8.8.8")))
    assert not any(map(policy.may_reach, ("10.2.0.1", "127.0.0.2", "::1", "fc00::1", "::ffff:10.2.0.1")))


# -- connections -----------------------------------------------------------------------------


class Listener:
    """A server on another loopback address, which only looks who comes."""

    def __init__(
        self, family: socket.AddressFamily = socket.AF_INET, address: str = "127.0.0.2", port: int = 0
    ) -> None:
        self._sock = socket.create_server((address, port), family=family)
        self._sock.setblocking(False)
        self.port: int = self._sock.getsockname()[1]

    def has_callers(self) -> bool:
        """Whether a connection was made, even if it is closed by now."""
        try:
            self._sock.accept()[0].close()
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        self._sock.close()


@pytest.fixture
def inner() -> Iterator[Listener]:
    listener = Listener()
    yield listener
    listener.close()


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """Name -> the addresses that a look-up gives, one list after the other; the last stays."""
    table: dict[str, list[str]] = {}
    real = socket.getaddrinfo

    def look_up(host: Any, port: Any, *rest: Any, **more: Any) -> Any:
        if host not in table:
            return real(host, port, *rest, **more)
        return [found for address in table[host] for found in real(address, port, *rest, **more)]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    return table


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "localhost", "2130706433", "0x7f.1", "0177.0.0.1", "127.1", "0", "[::1]", "[::ffff:127.0.0.1]",
     "[::ffff:7f00:1]", "[::]", "127.0.0.1.", "①②⑦.0.0.1"],
)  # fmt: skip
def test_no_spelling_of_loopback_is_reached(host: str) -> None:
    with RawServer(answers(b"secret")) as server:
        with pytest.raises(ToolFailed):
            fetch(f"http://{host}:{server.port}/", HttpRequest())
        assert server.peers == []


def test_the_refusal_says_what_to_do_and_not_which_address_it_was(names: dict[str, list[str]]) -> None:
    names["db.corp.test"] = ["10.1.2.3"]

    with pytest.raises(ToolFailed) as failure:
        fetch("https://db.corp.test/x?key=very-secret", HttpRequest())

    assert failure.value.detail == (
        "db.corp.test has no public address, and no other may be reached: ask for a public one, or have its network "
        "allowed by the operator (HTTP_PRIVATE_NETWORKS)"
    )


def test_a_name_that_means_a_private_address_is_refused_after_look_up(
    inner: Listener, names: dict[str, list[str]]
) -> None:
    names["inner.test"] = ["127.0.0.2"]

    with pytest.raises(ToolFailed, match=NOT_PUBLIC):
        fetch(f"http://inner.test:{inner.port}/", HttpRequest(["127.0.0.1"]))

    assert not inner.has_callers()


def test_a_name_that_means_another_address_the_next_time_is_checked_again(
    inner: Listener, names: dict[str, list[str]]
) -> None:
    made = HttpRequest(["127.0.0.1"])
    names["rebinding.test"] = ["127.0.0.1"]
    with RawServer(answers(b"harmless")) as server:
        assert fetch(f"http://rebinding.test:{server.port}/", made).body == "harmless"
    names["rebinding.test"] = ["127.0.0.2"]

    with pytest.raises(ToolFailed, match=NOT_PUBLIC):
        fetch(f"http://rebinding.test:{inner.port}/", made)

    assert not inner.has_callers()


def test_of_several_addresses_only_those_that_are_allowed_are_tried(names: dict[str, list[str]]) -> None:
    names["both.test"] = ["127.0.0.2", "::1", "127.0.0.1"]
    with RawServer(answers(b"ok")) as server:
        listener = Listener(port=server.port)
        try:
            assert fetch(f"http://both.test:{server.port}/", HttpRequest(["127.0.0.1"])).body == "ok"
            assert not listener.has_callers()
        finally:
            listener.close()


def test_a_mapped_address_is_judged_by_what_it_means() -> None:
    with RawServer(answers(b"ok")) as server:
        url = f"http://[::ffff:127.0.0.1]:{server.port}/"
        assert fetch(url, HttpRequest(["127.0.0.0/8"])).body == "ok"
        with pytest.raises(ToolFailed, match=NOT_PUBLIC):
            fetch(url, HttpRequest(["10.0.0.0/8"]))
        assert len(server.peers) == 1


def test_ipv6_loopback_is_reached_only_if_it_is_allowed() -> None:
    listener = Listener(socket.AF_INET6, "::1")
    try:
        with pytest.raises(ToolFailed, match=NOT_PUBLIC):
            fetch(f"http://[::1]:{listener.port}/", HttpRequest(["127.0.0.0/8"]))
        assert not listener.has_callers()
        call = HttpCall(f"http://[::1]:{listener.port}/", HttpRequest(["::1"]), timeout_ms=200)
        assert call.answer().error == "the request was ended after 0.2 s"
        assert listener.has_callers()
    finally:
        listener.close()


# -- redirects ---------------------------------------------------------------------------------


@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "303 See", "307 Temporary", "308 Permanent"])
def test_redirects_are_followed_relative_ones_too(status: str) -> None:
    with RawServer(redirects("/1", "2", "?x", status=status)) as server:
        answer = fetch(f"{server.url}#part")

    assert (answer.status, answer.body, answer.url) == (200, "arrived", f"{server.url}/2?x")
    assert sorted(sent.path for sent in requests_of(server)) == ["/", "/1", "/2", "/2?x"]


def test_five_redirects_are_the_most() -> None:
    with RawServer(redirects(*(f"/{number}" for number in range(1, 6)))) as server:
        assert fetch(server.url).body == "arrived"
    with RawServer(redirects(*(f"/{number}" for number in range(1, 7)))) as server:
        with pytest.raises(ToolFailed, match="redirects more than 5 times"):
            fetch(server.url)
        assert len(requests_of(server)) == 6
        assert all(peer.gone.wait(PATIENCE_S) for peer in server.peers)


def test_a_redirect_to_a_private_address_is_refused(inner: Listener, names: dict[str, list[str]]) -> None:
    names["inner.test"] = ["127.0.0.2"]
    for target in (f"http://127.0.0.2:{inner.port}/", f"http://inner.test:{inner.port}/", "http://[::1]:1/"):
        with RawServer(redirects(target)) as server:
            with pytest.raises(ToolFailed, match=NOT_PUBLIC):
                fetch(server.url, HttpRequest(["127.0.0.1"]))
            assert len(requests_of(server)) == 1
    assert not inner.has_callers()


def test_the_body_of_a_redirect_is_not_waited_for() -> None:
    def script(peer: Any) -> None:
        request = peer.read_request()
        if request.path == "/1":
            peer.answer(b"arrived")
        else:
            peer.send(b"HTTP/1.1 302 Found\r\nLocation: /1\r\nContent-Length: 9999\r\n\r\nnever the rest")
        peer.wait_hang_up()

    with RawServer(script) as server:
        assert fetch(server.url).body == "arrived"
        assert [peer.hung_up.wait(PATIENCE_S) for peer in server.peers] == [True, True]


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("file:///etc/passwd", "http:// or https://"),
        ("ftp://example.test/", "http:// or https://"),
        ("gopher://127.0.0.1:6379/_x", "http:// or https://"),
        ("javascript:alert(1)", "http:// or https://"),
        ("http://user:password@example.test/", "user name or password"),
        ("http://exa mple.test/", "space"),
        ("http://[::1/", "not valid"),
        ("http://example.test:99999/", "not valid"),
        ("/" + "x" * 9000, "longer than"),
        ("\xff\xfe", "not valid"),
    ],
)
def test_a_redirect_to_what_is_no_url_for_us_is_refused(target: str, words: str) -> None:
    def script(peer: Any) -> None:
        peer.read_request()
        peer.send(b"HTTP/1.1 302 Found\r\nLocation: " + target.encode("latin-1") + b"\r\nContent-Length: 0\r\n\r\n")
        peer.wait_hang_up()

    with RawServer(script) as server:
        with pytest.raises(ToolFailed, match=f"redirects to an address that is .*{words}") as failure:
            fetch(server.url)
        assert server.peer().gone.wait(PATIENCE_S)
    assert "password@" not in failure.value.detail


@pytest.mark.parametrize(
    ("status", "method", "then"),
    [
        ("301 Moved", "POST", "GET"), ("302 Found", "POST", "GET"), ("303 See", "POST", "GET"), ("303 See", "PUT", "GET"),
        ("302 Found", "DELETE", "GET"), ("301 Moved", "PUT", "PUT"), ("307 Temporary", "POST", "POST"),
        ("308 Permanent", "PATCH", "PATCH"), ("302 Found", "HEAD", "HEAD"), ("303 See", "GET", "GET"),
    ],
)  # fmt: skip
def test_the_method_and_the_body_follow_the_kind_of_redirect(status: str, method: str, then: str) -> None:
    def script(peer: Any) -> None:
        while (request := peer.read_request()) is not None:
            location = "Location: /1\r\n" if request.path == "/" else ""
            peer.send(f"HTTP/1.1 {status if location else '200 OK'}\r\n{location}Content-Length: 0\r\n\r\n".encode())

    with RawServer(script) as server:
        fetch(server.url, method=method, body="text", headers={"Content-Type": "text/x"})
        first, second = sorted(requests_of(server), key=lambda request: len(request.path))

    assert first.line.split()[0] == method
    assert second.line.split()[0] == then
    keeps = then == method and status[:3] != "303"
    assert (second.body, second.headers.get("content-type")) == ((b"text", "text/x") if keeps else (b"", None))


def test_what_may_be_secret_does_not_go_along_to_another_server() -> None:
    headers = {
        "Authorization": "Bearer very-secret",
        "Cookie": "a=very-secret",
        "X-Api-Key": "very-secret",
        "Accept": "a/b",
    }
    with RawServer(answers(b"ok")) as second, RawServer(redirects("/1", f"{second.url}/2")) as first:
        assert fetch(first.url, headers=headers).body == "ok"

        for sent in requests_of(first):
            assert (sent.headers["authorization"], sent.headers["cookie"]) == ("Bearer very-secret", "a=very-secret")
        (sent,) = requests_of(second)
    assert "very-secret" not in str(sent)
    assert sent.headers["accept"] == "a/b"
    assert sent.headers["host"] == f"127.0.0.1:{second.port}"


# -- what is refused before anything is sent ---------------------------------------------------


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("", "must begin with http"), ("example.com", "must begin with http"), ("ftp://example.com/", "must begin with"),
        ("file:///etc/passwd", "must begin with"), ("//example.com/", "must begin with"), ("httpx://a/", "must begin"),
        ("http:///path", "names no usable host"), ("http://", "names no usable host"), ("http://a:0/", "names no usable"),
        ("http://a:99999/", "not valid"), ("http://a:b/", "not valid"), ("http://[::1/", "not valid"),
        ("http://*.example.com/", "not valid"), ("http://a b/", "space"), ("http://a/\r\nX: y", "control character"),
        ("http://a/\x00", "control character"), ("http://a\\@b/", "backslash"), ("http://a/\ud800", "control character"),
        ("http://me:very-secret@a/", "leave it out, and send an Authorization header"), ("http://me@a/", "user name"),
        ("http://a/" + "x" * 8200, "longer than 8192"), ("http://" + "é" * 70 + ".com/", "not valid"),
        (" http://a/", "space"),
    ],
)  # fmt: skip
def test_a_url_that_is_no_plain_http_url_is_refused_in_words(url: str, words: str) -> None:
    with pytest.raises(ToolFailed, match=words) as failure:
        fetch(url)
    assert "very-secret" not in failure.value.detail


@pytest.mark.parametrize(
    ("headers", "words"),
    [
        *[({name: "x"}, f"the header {name} is set by the server itself") for name in (
            "Host", "hOST", "Connection", "Content-Length", "Transfer-Encoding", "TE", "Trailer", "Upgrade", "Keep-Alive",
            "Expect", "Proxy-Authorization", "Proxy-Connection",
        )],
        ({"X": "a\r\nHost: b"}, "line break"), ({"X": "a\nb"}, "line break"), ({"X": "a\0b"}, "line break"),
        ({"X": "漢"}, "unfit"), ({"X": " a"}, "white space"), ({"X": "a\t"}, "white space"),
        ({"X: a\r\nY": "b"}, "no name of a header"), ({"": "b"}, "no name of a header"),
        ({"X Y": "b"}, "no name"), ({"X:": "b"}, "no name"), ({"X\n": "b"}, "no name"), ({"Ä": "b"}, "no name"),
        ({"X": "y" * 40_000}, "longer than 32768"), ({"X" * 40_000: "y"}, "longer than 32768"),
    ],
)  # fmt: skip
def test_a_header_that_is_not_the_models_to_set_is_refused_and_nothing_is_sent(
    headers: dict[str, str], words: str
) -> None:
    with RawServer(answers(b"")) as server:
        with pytest.raises(ToolFailed, match=words):
            fetch(server.url, headers=headers)
        assert server.peers == []


def test_odd_headers_that_are_fit_are_sent_as_they_are() -> None:
    with RawServer(answers(b"ok")) as server:
        fetch(server.url, headers={"X-Odd": "a\tb: c, \xfc", "Accept": "x/y", "USER-AGENT": "me"})

    (sent,) = requests_of(server)
    assert sent.headers["x-odd"] == "a\tb: c, \xfc"
    assert (sent.headers["accept"], sent.headers["user-agent"]) == ("x/y", "me")


def test_a_body_that_is_no_text_is_refused() -> None:
    with RawServer(answers(b"")) as server, pytest.raises(ToolFailed, match="half a character"):
        fetch(server.url, method="POST", body="a\ud800")


def test_nothing_private_is_allowed_unless_a_setting_says_so() -> None:
    assert Settings(_env_file=None).http_private_networks == ()
    with RawServer(answers(b"")) as server:
        with pytest.raises(ToolFailed, match=NOT_PUBLIC):
            fetch(server.url, HttpRequest())
        assert fetch(server.url, tool()).status == 200
        assert len(server.peers) == 1
