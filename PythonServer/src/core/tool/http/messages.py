"""The requests that the HTTP tool sends: the first from the arguments, the next from a redirect; and words for failures."""

from __future__ import annotations

import http.client
from typing import Any, Final
from urllib.parse import urljoin

import requests
from requests.sessions import SessionRedirectMixin
from urllib3.exceptions import DecodeError, HTTPError, NameResolutionError, SSLError
from urllib3.util import parse_url

from core.network.abortable_http import AddressRefused
from core.tool.http.policy import check_headers, check_url
from core.tool.tool import ToolFailed

METHODS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
#: What an exchange may raise.
TRANSPORT_ERRORS: Final = (requests.RequestException, HTTPError, OSError, http.client.HTTPException)

#: A compressor holds back what was sent before a stop, so none is asked for; what is compressed is decoded all the same.
_DEFAULT_HEADERS: Final = {"User-Agent": "PythonServer http_request", "Accept": "*/*", "Accept-Encoding": "identity"}
#: The headers that go along to another server. The rest may hold a secret that was meant for the first one only.
_HARMLESS: Final = frozenset(
    (
        "accept", "accept-encoding", "accept-language", "content-language", "content-length", "content-type", "range",
        "user-agent",
    )
)  # fmt: skip
#: How ``requests`` reads a redirect, without its session.
_rules: Final = SessionRedirectMixin()


def first_request(arguments: dict[str, Any]) -> requests.PreparedRequest:
    """What the arguments ask for; ``ToolFailed`` that says what is wrong with them."""
    url, headers = arguments["url"], arguments.get("headers", {})
    check_url(url)
    check_headers(headers)
    try:
        body = arguments.get("body", "").encode()
    except UnicodeEncodeError:
        raise ToolFailed("the body holds half a character (a lone surrogate): send whole text") from None
    try:
        request = requests.Request(arguments.get("method", "GET"), url, headers=headers, data=body).prepare()
    except (requests.RequestException, ValueError):
        raise ToolFailed("the URL is not valid: give one such as https://example.com/path") from None
    for name, value in _DEFAULT_HEADERS.items():
        request.headers.setdefault(name, value)
    return request


def next_request(request: requests.PreparedRequest, response: requests.Response) -> requests.PreparedRequest | None:
    """What a redirect asks for instead; None if the answer is none. ``ToolFailed`` if it leads where nobody may go."""
    try:
        target = _rules.get_redirect_target(response)
        if target is None:
            return None
        following = request.copy()
        url = urljoin(request.url or "", target)
        check_url(url)
        following.prepare_url(url, None)
    except ToolFailed as failure:
        raise ToolFailed(f"the server redirects to an address that is refused: {failure.detail}") from None
    except (requests.RequestException, ValueError):
        raise ToolFailed("the server redirects to an address that is not valid: ask for another URL") from None
    _rules.rebuild_method(following, response)
    if following.method != request.method or response.status_code == requests.codes.see_other:
        following.body = None
        for name in ("Content-Length", "Content-Type"):
            following.headers.pop(name, None)
    if _rules.should_strip_auth(request.url or "", following.url or ""):  # type: ignore[no-untyped-call]
        for name in [name for name in following.headers if name.lower() not in _HARMLESS]:
            del following.headers[name]
    return following


def host_of(request: requests.PreparedRequest) -> str:
    """Host and port, for messages."""
    return parse_url(request.url or "").netloc or "?"


def why_failed(error: Exception, host: str) -> str:
    """Words for the model. They hold nothing of the exception's own, which may name paths and addresses."""
    known: tuple[tuple[type[BaseException] | tuple[type[BaseException], ...], str], ...] = (
        (AddressRefused, f"{host} has no public address, and no other may be reached: ask for a public one, or have "
         "its network allowed by the operator (HTTP_PRIVATE_NETWORKS)"),
        (NameResolutionError, f"the name of {host} is not known: check the URL"),
        ((SSLError, requests.exceptions.SSLError), f"no secure connection (TLS) to {host}: check the host's certificate"),
        (ConnectionRefusedError, f"{host} refuses connections: check the port, or try later"),
        (TimeoutError, f"{host} does not answer: try later"),
        (http.client.RemoteDisconnected, f"{host} hung up without an answer: try later"),
        (ConnectionError, f"{host} hung up: try later"),
        (http.client.IncompleteRead, f"{host} broke off: try again"),
        (DecodeError, f"{host} sent a body that does not match its content encoding"),
        (http.client.HTTPException, f"{host} does not answer in HTTP: check scheme and port"),
    )  # fmt: skip
    causes = _causes(error)
    for kind, words in known:
        if any(isinstance(cause, kind) for cause in causes):
            return words
    return f"the connection to {host} failed: check the URL, or try later"


def _causes(error: BaseException) -> list[BaseException]:
    """The error and all it wraps: ``requests`` keeps causes in ``args``, urllib3 also in ``reason``."""
    found = [error]
    for cause in found:  # grows while it is walked
        inner = [*cause.args, getattr(cause, "reason", None), cause.__cause__]
        found.extend(one for one in inner if isinstance(one, BaseException) and one not in found)
    return found
