"""What went wrong on the way to a server or in its answer, in words fit for the user.

No message holds a key, a header or a page of HTML, and none is longer than :data:`EXCERPT`.
"""

import http.client
import json
import re
import time
from collections.abc import Iterable
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

import requests
from urllib3.exceptions import ConnectTimeoutError as ConnectTimeout
from urllib3.exceptions import (
    DecodeError,
    HTTPError,
    LocationParseError,
    NameResolutionError,
    ReadTimeoutError,
    SSLError,
)
from urllib3.exceptions import ProxyError as UrllibProxyError

from core.errors import ProviderError, ProviderNonsense
from core.provider.failures import ServerUnreachable

#: Longest excerpt of a server's own words, in characters.
EXCERPT = 300
_HTML = re.compile(r"\s*(<!doctype|<html|<head|<body|<!--|<\?xml)", re.IGNORECASE)
_KEY_LIKE = re.compile(r"\b(Bearer\s+\S+|sk-[\w*-]{6,})")
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]+")


def safe_excerpt(text: str, secrets: Iterable[str] = ()) -> str:
    """A short piece of a foreign text: one line, without secrets, never HTML."""
    if _HTML.match(text):
        return "the server answered HTML"
    for secret in secrets:
        if secret:
            text = text.replace(secret, "[hidden]")
    text = _UNPRINTABLE.sub(" ", _KEY_LIKE.sub("[hidden]", text)).strip()
    return text if len(text) <= EXCERPT else text[: EXCERPT - 1] + "…"


def error_text(error: Any) -> str:
    """The words of an ``error`` member, whatever its shape."""
    if isinstance(error, dict):
        error = error.get("message") or error.get("detail") or error.get("type") or error.get("code")
    return error if isinstance(error, str) else json.dumps(error)[:1000]


def body_text(body: bytes) -> str:
    """The words of an error body: the message in its JSON, else the text itself."""
    text = body.decode("utf-8", "replace")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if isinstance(value, dict) and value.get("error"):
        return error_text(value["error"])
    return error_text(value)


def place(url: str) -> str:
    """``scheme://host:port`` of an address, without user, path or query."""
    parts = urlsplit(url)
    host = parts.hostname or "?"
    host = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{host}:{parts.port or (443 if parts.scheme == 'https' else 80)}"


def transport_failure(error: Exception, url: str, *, has_answered: bool, has_said: bool) -> ProviderError:
    """The provider error for a failed exchange; the flags: headers had come, a part of the reply had come."""
    where = place(url)
    causes = list(_causes(error))
    if any(isinstance(cause, DecodeError) for cause in causes):
        return ProviderNonsense(f"{where} sent a body that does not match its content encoding")
    if any(_is_not_http(cause) for cause in causes):
        return ProviderNonsense(f"{where} does not answer in HTTP")
    if any(isinstance(cause, ReadTimeoutError | requests.ReadTimeout) for cause in causes):
        return ServerUnreachable(f"{where} has sent nothing for too long", is_retryable=False)
    if has_answered:
        return broke_off(url, has_said=has_said)
    words, is_retryable, is_connected = _why(causes)
    return ServerUnreachable(
        f"{where} cannot be reached: {words}", is_retryable=is_retryable, is_connected=is_connected
    )


def broke_off(url: str, *, has_said: bool) -> ServerUnreachable:
    """The answer ended before its end; worth a retry as long as nothing of the reply was used."""
    return ServerUnreachable(f"the stream from {place(url)} broke off", is_retryable=not has_said)


def _causes(error: BaseException) -> Iterable[BaseException]:
    """The error and all it wraps: ``requests`` keeps causes in ``args``, urllib3 also in ``reason``."""
    seen: list[BaseException] = [error]
    for cause in seen:  # grows while it is walked
        inner = [*cause.args, getattr(cause, "reason", None), cause.__cause__]
        seen.extend(one for one in inner if isinstance(one, BaseException) and one not in seen)
    return seen


def _is_not_http(cause: BaseException) -> bool:
    if isinstance(cause, http.client.RemoteDisconnected | http.client.IncompleteRead):
        return False
    return isinstance(cause, http.client.HTTPException)


def _why(causes: list[BaseException]) -> tuple[str, bool, bool]:
    """A few words, whether the same may work later, and whether there was a connection."""
    known: tuple[tuple[type[BaseException] | tuple[type[BaseException], ...], str, bool, bool], ...] = (
        (UrllibProxyError, "the proxy does not let us through", True, False),
        (NameResolutionError, "its name is not known", True, False),
        ((SSLError, requests.exceptions.SSLError), "no secure connection (TLS)", False, False),
        (ConnectionRefusedError, "connection refused", True, False),
        (ConnectTimeout, "no connection in time", True, False),
        ((LocationParseError, requests.exceptions.InvalidURL), "the address is not valid", False, False),
        (http.client.RemoteDisconnected, "it hung up without an answer", True, True),
        (ConnectionResetError, "it hung up without an answer", True, True),
    )
    for kind, words, is_retryable, is_connected in known:
        # NewConnectionError is a ConnectTimeoutError in urllib3 2; a refused connection is found first above.
        if any(isinstance(cause, kind) for cause in causes):
            return words, is_retryable, is_connected
    return "the connection failed", True, True


#: What an exchange by ``requests`` and urllib3 may raise.
TRANSPORT_ERRORS = (requests.RequestException, HTTPError, OSError, http.client.HTTPException)


def retry_after_s(value: str | None, now: float | None = None) -> float | None:
    """A Retry-After header in seconds: a number, however large, or an HTTP date (RFC 9110, 10.2.3)."""
    if value is None:
        return None
    value = value.strip()
    try:
        seconds = float(value)
        return seconds if 0 <= seconds < float("inf") else None
    except ValueError:
        pass
    try:
        at = parsedate_to_datetime(value)
    except (ValueError, TypeError, OverflowError):
        return None
    at = at if at.tzinfo else at.replace(tzinfo=UTC)
    return max(0.0, at.timestamp() - (time.time() if now is None else now))
