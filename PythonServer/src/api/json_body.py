"""Request bodies: one JSON object, strictly read, at most 1 MiB; where a session is imported, JSON Lines too."""

import json
import math
import re
from collections.abc import Iterator
from functools import cached_property
from typing import Any, NoReturn

from flask import Flask, Request, request
from gunicorn.http.errors import ParseException
from werkzeug.exceptions import BadRequest, ClientDisconnected, RequestEntityTooLarge, UnsupportedMediaType

from core.errors import InvalidJson, InvalidRequest, NotFound

MAX_BODY_BYTES = 1024 * 1024
#: Endpoints whose body may be longer.
LARGER_BODIES = {"import_session": 32 * MAX_BODY_BYTES}
#: The media types of JSON Lines: an object a line.
JSON_LINES = frozenset({"application/jsonl", "application/x-ndjson", "application/x-jsonlines"})
#: How much of a body that is too large is still read, so that the connection can be used for the next request.
MAX_DISCARDED_BYTES = 16 * MAX_BODY_BYTES
#: Deeper than any plan that is allowed, and well above what the recursive libraries behind us can take.
MAX_DEPTH = 256

#: Escapes of half a character, and of NUL, which PostgreSQL takes in no text.
_MAY_HOLD_UNFIT_TEXT = re.compile(r"\\u(0000|[dD][89a-fA-F])")


class JsonRequest(Request):
    """A request whose JSON is read by our rules, wherever and however the framework asks for it."""

    @cached_property
    def json_object(self) -> dict[str, Any]:
        """The body; an empty one counts as ``{}``.

        Raises ``InvalidJson`` (400), ``InvalidRequest`` (422) if it is JSON and no fit object,
        ``UnsupportedMediaType`` (415), ``RequestEntityTooLarge`` (413).
        """
        body = self._whole_body()
        if not body:
            return {}
        if self.mimetype in JSON_LINES and view_of(self) in LARGER_BODIES:
            return {"lines": _parse_lines(body)}
        if self.mimetype and not self.is_json:
            raise UnsupportedMediaType
        return parse_object(body, self.mimetype_params.get("charset", "utf-8"))

    def _whole_body(self) -> bytes:
        try:
            body = self.get_data(cache=True)
        except RequestEntityTooLarge:
            self._discard(self.content_length or MAX_DISCARDED_BYTES)
            raise
        except ParseException as error:  # a body in chunks that are none
            raise BadRequest from error
        except OSError as error:  # it stalled, or the client has gone
            raise ClientDisconnected from error
        # The framework cuts a body without a length at the limit, and takes a broken one for a whole one.
        if self.content_length is None:
            if len(body) >= (self.max_content_length or MAX_BODY_BYTES) and self.environ["wsgi.input"].read(1):
                self._discard(MAX_DISCARDED_BYTES)
                raise RequestEntityTooLarge
        elif len(body) < self.content_length:
            raise ClientDisconnected
        return body

    def _discard(self, size: int) -> None:
        """Read away what is left, ``size`` bytes at most. The server would close the connection over the rest,
        and with it the client's next request, which may be a stop.
        """
        left = min(size, MAX_DISCARDED_BYTES)
        while left > 0 and (data := self.environ["wsgi.input"].read(min(left, 65_536))):
            left -= len(data)

    def get_json(self, force: bool = False, silent: bool = False, cache: bool = True) -> Any:
        """:attr:`json_object`. Not silent: the framework would turn broken JSON into "not an object"."""
        return self.json_object


def install_json_bodies(app: Flask) -> None:
    """Bound and check the body of every request before its view runs, whether or not the view reads it."""
    app.request_class = JsonRequest
    app.config["MAX_CONTENT_LENGTH"] = MAX_BODY_BYTES

    @app.before_request
    def check_address() -> None:
        if "\x00" in request.path or any("\x00" in value for value in request.args.values()):
            raise NotFound("no address of ours holds a NUL character")  # and PostgreSQL takes none

    @app.before_request
    def check_body() -> None:
        if request.routing_exception is None and request.method in {"POST", "PUT", "PATCH", "DELETE"}:
            request.max_content_length = LARGER_BODIES.get(view_of(request), MAX_BODY_BYTES)
            request.get_json()


def view_of(asked: Request) -> str:
    """The name of the view that the request goes to."""
    return (asked.endpoint or "").rpartition(".")[2]


def _parse_lines(body: bytes) -> list[dict[str, Any]]:
    lines = []
    for number, line in enumerate(body.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        if line.strip():
            try:
                lines.append(parse_object(line))
            except (InvalidJson, InvalidRequest) as error:
                raise type(error)(f"Line {number}: {error.detail}") from None
    return lines


def parse_object(body: bytes, charset: str = "utf-8") -> dict[str, Any]:
    """One JSON object (RFC 8259) that can be written again. Raises ``InvalidJson``, ``InvalidRequest``."""
    if charset.lower() not in {"utf-8", "utf8", "us-ascii"}:
        raise InvalidJson("JSON is sent in UTF-8; another charset was named")
    try:
        text = body.decode("utf-8")
        value = json.loads(text, parse_constant=_refuse_constant, parse_float=_finite)
    except UnicodeDecodeError:
        raise InvalidJson("The body is not UTF-8") from None
    except json.JSONDecodeError as error:
        # Where, never what: the body is not sent back.
        raise InvalidJson(f"The body is not JSON: line {error.lineno}, column {error.colno}") from None
    except (ValueError, RecursionError):
        raise InvalidJson("The body is nested too deeply, or holds a number that is too long") from None
    if not isinstance(value, dict):
        raise InvalidRequest("The body must be a JSON object", errors=[{"field": "", "message": "no object"}])
    if text.count("[") + text.count("{") > MAX_DEPTH or _MAY_HOLD_UNFIT_TEXT.search(text):
        _check_inside(value)
    return value


def _refuse_constant(word: str) -> NoReturn:
    raise InvalidJson(f"{word} is not JSON")


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise InvalidJson("A number is too large")
    return number


def _check_inside(value: dict[str, Any]) -> None:
    """Refuse what is too deep, and text that cannot be written as UTF-8. A loop: depth cannot harm it."""
    waiting: list[tuple[str, Any, int]] = [("", value, 1)]
    while waiting:
        where, item, depth = waiting.pop()
        if depth > MAX_DEPTH and isinstance(item, dict | list):
            raise InvalidJson(f"The body is nested deeper than {MAX_DEPTH}")
        if isinstance(item, str):
            _check_text(where, item)
        for name, child in _children(item):
            _check_text(where, name)
            waiting.append((f"{where}.{name}" if where else name, child, depth + 1))


def _children(item: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(item, dict):
        return iter(item.items())
    if isinstance(item, list):
        return ((str(number), child) for number, child in enumerate(item))
    return iter(())


def _check_text(where: str, text: str) -> None:
    if "\x00" in text:
        raise _unfit(where, "holds a NUL character")
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise _unfit(where, "holds half a character (a lone surrogate)")


def _unfit(where: str, what: str) -> InvalidRequest:
    return InvalidRequest(f"A text {what}", errors=[{"field": where[:200], "message": what}])
