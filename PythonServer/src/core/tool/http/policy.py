"""What an agent may ask for over HTTP: which addresses a connection may go to, which URLs and headers are refused."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Final

from urllib3.exceptions import LocationParseError
from urllib3.util import parse_url

from core.tool.tool import ToolFailed

MAX_URL: Final = 8 * 1024
MAX_HEADERS_BYTES: Final = 32 * 1024

#: IPv4 networks that are not the public internet (IANA special-purpose registry, multicast, reserved). Written out,
#: because what ``ipaddress`` calls global depends on the version of Python.
_NOT_PUBLIC_4: Final = tuple(
    ip_network(text)
    for text in (
        "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24",
        "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24",
        "224.0.0.0/4", "240.0.0.0/4",
    )
)  # fmt: skip
#: All of public IPv6, and what in it is not: protocols with Teredo, documentation, 6to4, documentation.
_PUBLIC_6: Final = ip_network("2000::/3")
_NOT_PUBLIC_6: Final = tuple(map(ip_network, ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20")))
#: Addresses of NAT64 (RFC 6052): the IPv4 address is the last 32 bits.
_NAT64: Final = ip_network("64:ff9b::/96")

#: These frame the message, name its receiver or belong to one connection: they are ours to set.
REFUSED_HEADERS: Final = frozenset(
    (
        "host", "connection", "content-length", "transfer-encoding", "te", "trailer", "upgrade", "keep-alive", "expect",
        "proxy-connection", "proxy-authorization", "proxy-authenticate", "http2-settings",
    )
)  # fmt: skip
_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_UNFIT_VALUE: Final = re.compile(r"[^\t\x20-\x7e\x80-\xff]")
_UNFIT_URL: Final = re.compile(r"[\x00-\x20\x7f\\\ud800-\udfff]")


class AddressPolicy:
    """The public internet, and the networks that the operator allows beside it."""

    def __init__(self, allowed: Iterable[str] = ()) -> None:
        """``allowed``: networks such as ``10.1.0.0/16``, checked already."""
        self._allowed = tuple(map(ip_network, allowed))

    def may_reach(self, address: str) -> bool:
        """Whether a connection may go to this numeric address, whatever the name that led to it."""
        given = ip_address(address.partition("%")[0])
        meant = _unwrapped(given)
        if any(each in network for network in self._allowed for each in (given, meant)):
            return True
        if isinstance(meant, IPv4Address):
            return not any(meant in network for network in _NOT_PUBLIC_4)
        return meant in _PUBLIC_6 and not any(meant in network for network in _NOT_PUBLIC_6)


def _unwrapped(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """The IPv4 address that an IPv6 one stands for, if it does."""
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
        if address in _NAT64:
            return IPv4Address(address.packed[-4:])
    return address


def check_url(url: str) -> None:
    """``ToolFailed`` unless it is an http or https URL with a host and without credentials. No message repeats it."""
    if len(url) > MAX_URL:
        raise ToolFailed(f"the URL is longer than {MAX_URL} characters: use a shorter one")
    if _UNFIT_URL.search(url):
        raise ToolFailed("the URL holds a space, a backslash or a control character: write such as %20")
    try:
        parts = parse_url(url)
    except LocationParseError:
        raise ToolFailed("the URL is not valid: give one such as https://example.com/path") from None
    if parts.scheme not in ("http", "https"):
        raise ToolFailed("the URL must begin with http:// or https://")
    if parts.auth is not None:
        raise ToolFailed("the URL holds a user name or password: leave it out, and send an Authorization header")
    if not parts.host or parts.port == 0:
        raise ToolFailed("the URL names no usable host and port: give one such as https://example.com/path")


def check_headers(headers: Mapping[str, str]) -> None:
    """``ToolFailed`` if one is not the caller's to set, or could be read as more than one line."""
    if sum(len(name) + len(value) for name, value in headers.items()) > MAX_HEADERS_BYTES:
        raise ToolFailed(f"the headers are longer than {MAX_HEADERS_BYTES} bytes: send less")
    for name, value in headers.items():
        if not _NAME.fullmatch(name):
            raise ToolFailed(f"{name[:40]!r} is no name of a header: use letters, digits and hyphens")
        if name.lower() in REFUSED_HEADERS:
            raise ToolFailed(f"the header {name} is set by the server itself: leave it out")
        if _UNFIT_VALUE.search(value) or value != value.strip():
            raise ToolFailed(
                f"the value of the header {name} holds a line break, white space at an end, or another unfit character: "
                "send it without"
            )
