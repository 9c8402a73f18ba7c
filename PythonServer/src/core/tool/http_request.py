"""The HTTP tool: one request, its answer, and a stop that hangs up in any phase of it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import requests

from core.call import Outcome
from core.cancellation import Cancelled, CauseWord
from core.tool.http.exchange import MAX_REDIRECTS, Exchange
from core.tool.http.messages import METHODS, TRANSPORT_ERRORS, first_request, why_failed
from core.tool.http.policy import AddressPolicy
from core.tool.output import shorten
from core.tool.tool import Stops, Tool, ToolFailed, ToolResult, ToolRun

OUTPUT_CAP: Final = 1024 * 1024
DEFAULT_TIMEOUT_MS: Final = 120_000
MAX_TIMEOUT_MS: Final = 600_000
#: The most of the answer's headers that goes to the model, in characters: of one value, and of all.
_VALUE_CHARS, _HEADERS_CHARS = 1024, 8 * 1024


class HttpRequest(Tool):
    """Sends one request to a public server, or to one in a network that the operator allows, and reads the answer.

    Each address is checked when it is connected to, those of redirects too. Nothing is kept between calls.
    """

    name = "http_request"
    description = (
        "Send an HTTP request and return the answer's status, headers and body as JSON. Redirects are followed, "
        f"at most {MAX_REDIRECTS}. Private addresses cannot be reached unless the server's operator allows them."
    )
    stops = Stops.ABORTS

    def __init__(
        self, private_networks: Iterable[str] = (), output_cap: int = OUTPUT_CAP,
        default_timeout_ms: int = DEFAULT_TIMEOUT_MS, verify: bool | str = True,
    ) -> None:  # fmt: skip
        """``private_networks``: networks that may be reached though they are not public. ``verify``: see ``requests``."""
        self._policy = AddressPolicy(private_networks)
        self._output_cap = output_cap
        self._default_timeout_ms = default_timeout_ms
        self._verify = verify
        self.parameters: dict[str, Any] = {
            "type": "object",
            "properties": {
                "method": {"type": "string", "enum": list(METHODS), "default": "GET"},
                "url": {"type": "string", "description": "http:// or https://, without user name and password"},
                "headers": {
                    "type": "object", "additionalProperties": {"type": "string"},
                    "description": "such as Content-Type, which a body needs; not Host, and none of the connection's",
                },
                "body": {"type": "string", "description": "sent as UTF-8"},
                "timeout_ms": {
                    "type": "integer", "minimum": 1, "maximum": max(MAX_TIMEOUT_MS, default_timeout_ms),
                    "default": default_timeout_ms,
                    "description": "the request is ended after this time",
                },
            },
            "required": ["url"],
            "additionalProperties": False,
        }  # fmt: skip

    def run(self, arguments: dict[str, Any], run: ToolRun) -> ToolResult:
        """``content`` is a JSON object: status, reason?, url (the last one), headers, body, truncated?, error?,
        success, execution_time (seconds), interrupted?.

        A stop returns what there is so far and ``interrupted`` true; ``status`` is null before the answer's headers.
        A limit of its own does the same without ``interrupted``. ``error`` says why the answer is not whole. A status
        other than 2xx is an error result too.
        """
        began = time.monotonic()
        request = first_request(arguments)
        timeout_s = arguments.get("timeout_ms", self._default_timeout_ms) / 1000
        exchange = Exchange(run, self._policy, self._output_cap, self._verify)
        failure = _execute(exchange, request, run, timeout_s)
        _settle(run, exchange)
        note = self._note(run, exchange, timeout_s, failure)
        return _result(exchange, note, time.monotonic() - began)

    def _note(self, run: ToolRun, exchange: Exchange, timeout_s: float, failure: str | None) -> _Note | None:
        """Why the answer is not whole; None if it is."""
        if exchange.is_complete:
            return None
        if run.limit_hit is CauseWord.OUTPUT_LIMIT:
            return _Note(f"the answer was longer than {self._output_cap} bytes; the request was ended")
        if run.limit_hit is not None:
            return _Note(f"the request was ended after {timeout_s:g} s")
        if run.scope.cause is not None:
            return _Note(f"the request was interrupted ({run.scope.cause.word})", is_interrupted=True)
        return _Note(failure or "the answer is not whole")


@dataclass(frozen=True, slots=True)
class _Note:
    """What the member ``error`` says."""

    line: str
    is_interrupted: bool = False


def _execute(exchange: Exchange, request: requests.PreparedRequest, run: ToolRun, timeout_s: float) -> str | None:
    """Do it, under a stop's reach and within the time. Why it broke off, if it did so by itself after its headers."""
    abort = run.add_abort(exchange.shut)
    alarm = run.limit_time(timeout_s)
    try:
        exchange.perform(request, timeout_s)
    except Cancelled as stop:
        if stop.scope is not run.scope:
            raise
    except TRANSPORT_ERRORS as error:
        if run.scope.is_stopped:  # which broke it
            return None
        words = why_failed(error, exchange.host)
        if exchange.response is None:
            raise ToolFailed(words) from error
        return words
    finally:
        alarm.call_off()
        run.scope.forget(abort)
    return None


def _settle(run: ToolRun, exchange: Exchange) -> None:
    """Note what a stop, or a limit, made of the call. Raises if a stop came before anything was sent."""
    if not run.scope.is_stopped:
        return
    if exchange.is_complete:
        run.settle(Outcome.ALREADY_DONE, "it had finished")
    elif exchange.is_sent:
        run.settle(Outcome.ABORTED, "socket shut")
    else:
        run.settle(Outcome.NOT_STARTED, "never began")
        if run.limit_hit is None:
            run.scope.checkpoint()


def _result(exchange: Exchange, note: _Note | None, took_s: float) -> ToolResult:
    response, body = exchange.response, exchange.body
    status = response.status_code if response is not None else None
    whole = body.text() if body is not None else ""
    shown = shorten(whole)
    success = note is None and status is not None and 200 <= status < 300
    fields: dict[str, Any] = {"status": status}
    if response is not None and response.reason:
        fields["reason"] = response.reason[:200]
    fields["url"] = exchange.request.url if exchange.request is not None else None
    fields["headers"] = _shown_headers(response) if response is not None else {}
    fields["body"] = shown
    if (note is not None and response is not None) or len(shown) < len(whole):
        fields["truncated"] = True
    if note is not None:
        fields["error"] = note.line
    fields |= {"success": success, "execution_time": round(took_s, 3)}
    if note is not None and note.is_interrupted:
        fields["interrupted"] = True
    return ToolResult(json.dumps(fields, ensure_ascii=False), is_error=not success)


def _shown_headers(response: requests.Response) -> dict[str, str]:
    """As many as fit, in their order."""
    shown: dict[str, str] = {}
    left = _HEADERS_CHARS
    for name, value in response.headers.items():
        left -= len(name) + min(len(value), _VALUE_CHARS)
        if left < 0:
            break
        shown[name] = value[:_VALUE_CHARS]
    return shown
