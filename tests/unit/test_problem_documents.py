"""Every error leaves as a problem document, says what to do, and gives nothing away."""

import io
import json
from typing import Any

import pytest
from flask import Flask, abort
from flask.testing import FlaskClient
from flask_openapi.openapi import OpenAPI
from pydantic import BaseModel, ConfigDict, Field
from werkzeug.test import TestResponse

from api.errors import register_error_handlers, validation_error_response
from api.json_body import LARGER_BODIES, MAX_BODY_BYTES, MAX_DEPTH, parse_object
from core.errors import InvalidJson, ServerError, SessionIsBusy, StopNotRecorded, TooManyStreams


class Order(BaseModel):
    """A body with a required field, a bounded one and an inner object."""

    model_config = ConfigDict(extra="forbid")

    input: str
    wait_ms: int = Field(default=0, ge=0, le=30_000)
    metadata: dict[str, Any] | None = None


class Wish(BaseModel):
    """A body of which nothing is required."""

    model_config = ConfigDict(extra="forbid")

    reason: str | None = None


def make_app() -> OpenAPI:
    app = OpenAPI("problems", validation_error_callback=validation_error_response, doc_ui=False)
    register_error_handlers(app)

    @app.post("/orders")
    def make_order(body: Order) -> dict[str, Any]:
        return body.model_dump()

    @app.post("/wishes")
    def make_wish(body: Wish) -> dict[str, Any]:
        return body.model_dump()

    @app.post("/imports")
    def import_session() -> dict[str, Any]:
        return {}

    @app.post("/ignores")
    def ignores_the_body() -> dict[str, Any]:
        return {}

    add_failing_routes(app)
    return app


def add_failing_routes(app: Flask) -> None:
    errors: dict[str, Exception] = {
        "busy": SessionIsBusy("One at a time", run_id="r_1", status=200, code="mine"),
        "unrecorded": StopNotRecorded(receipt=[{"kind": "model_call"}]),
        "bug": RuntimeError("the password is hunter2"),
    }
    full = TooManyStreams()
    full.headers["Retry-After"] = "5"
    errors["full"] = full

    def fails(name: str) -> str:
        if name.isdigit():
            abort(int(name))
        raise errors[name]

    app.add_url_rule("/fails/<name>", "fails", fails)


@pytest.fixture
def client() -> FlaskClient:
    return make_app().test_client()


def document(answer: TestResponse, status: int, code: str) -> dict[str, Any]:
    assert (answer.status_code, answer.content_type) == (status, "application/problem+json")
    found: dict[str, Any] = answer.get_json()
    assert (found["status"], found["code"]) == (status, code)
    assert found["type"] == f"urn:pythonserver:problem:{code}"
    assert found["title"]
    assert found["detail"]
    assert found["instance"] == request_path(answer)
    return found


def request_path(answer: TestResponse) -> str:
    assert answer.request is not None
    return answer.request.path


def post(client: FlaskClient, body: bytes, content_type: str = "application/json", to: str = "/orders") -> TestResponse:
    return client.post(to, data=body, content_type=content_type)


# -- our own errors --------------------------------------------------------------------------


def test_one_of_our_errors_keeps_its_status_its_code_and_its_further_members(client: FlaskClient) -> None:
    found = document(client.get("/fails/busy"), 409, "session_is_busy")

    assert found["detail"] == "One at a time"
    assert found["run_id"] == "r_1"


def test_a_stop_that_was_not_recorded_still_shows_its_receipt(client: FlaskClient) -> None:
    found = document(client.get("/fails/unrecorded"), 500, "stop_not_recorded")

    assert found["receipt"] == [{"kind": "model_call"}]


def test_an_error_brings_its_headers(client: FlaskClient) -> None:
    assert client.get("/fails/full").headers["Retry-After"] == "5"


def test_every_error_of_ours_has_a_code_of_its_own_kind() -> None:
    def below(kind: type[ServerError]) -> list[type[ServerError]]:
        return [kind, *(deeper for child in kind.__subclasses__() for deeper in below(child))]

    for kind in below(ServerError):
        assert kind.code.isidentifier()
        assert 400 <= kind.status < 600
        assert kind.title


def test_a_bug_is_told_without_its_words_and_without_a_stack_trace(
    client: FlaskClient, caplog: pytest.LogCaptureFixture
) -> None:
    answer = client.get("/fails/bug")

    document(answer, 500, "internal_error")
    assert "hunter2" not in answer.text
    assert "Traceback" not in answer.text
    assert [record.exc_info is not None for record in caplog.records] == [True]


# -- the framework's errors ------------------------------------------------------------------


def test_an_unknown_route_is_a_problem_and_no_page(client: FlaskClient) -> None:
    document(client.get("/no/such"), 404, "not_found")
    document(post(client, b"{broken", to="/no/such"), 404, "not_found")


def test_a_wrong_method_says_which_are_right(client: FlaskClient) -> None:
    answer = client.get("/orders")

    document(answer, 405, "method_not_allowed")
    assert "POST" in answer.headers["Allow"]


@pytest.mark.parametrize(("status", "code"), [(400, "bad_request"), (418, "im_a_teapot"), (503, "service_unavailable")])
def test_whatever_the_framework_raises_is_a_problem(client: FlaskClient, status: int, code: str) -> None:
    document(client.get(f"/fails/{status}"), status, code)


# -- shapes ----------------------------------------------------------------------------------


def test_a_right_body_passes_and_an_empty_one_counts_as_an_empty_object(client: FlaskClient) -> None:
    assert post(client, b'{"input": "hi"}').get_json()["input"] == "hi"
    assert post(client, b"", to="/wishes").status_code == 200
    assert client.post("/wishes").status_code == 200
    assert [each["field"] for each in document(post(client, b""), 422, "invalid_request")["errors"]] == ["input"]


def test_each_wrong_field_is_named_and_no_value_is_sent_back(client: FlaskClient) -> None:
    answer = post(client, b'{"input": 3141592, "wait_ms": 3141593, "colour": "3141594"}')

    found = document(answer, 422, "invalid_request")
    assert sorted(each["field"] for each in found["errors"]) == ["colour", "input", "wait_ms"]
    assert all(each["message"] for each in found["errors"])
    assert "314159" not in answer.text


def test_a_flood_of_wrong_fields_is_cut(client: FlaskClient) -> None:
    body = {"x" * 1000 + str(number): 1 for number in range(500)}

    answer = post(client, json.dumps(body).encode())

    assert len(document(answer, 422, "invalid_request")["errors"]) == 20
    assert len(answer.data) < 20_000


@pytest.mark.parametrize("body", [b"[]", b"null", b"3", b'"text"', rb'"{\"input\": \"hi\"}"', b"true"])
def test_a_body_that_is_no_object_has_the_wrong_shape(client: FlaskClient, body: bytes) -> None:
    document(post(client, body), 422, "invalid_request")


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"nonsense",
        b"{'input': 1}",
        b'{"input": "a",}',
        b'{"input": NaN}',
        b'{"input": "a", "metadata": {"n": [-Infinity]}}',
        b'{"input": "a", "metadata": {"n": 1e999}}',
        b'{"input": "a", "metadata": {"n": ' + b"9" * 5000 + b"}}",
        b'{"input": "\xff"}',
        b'{"input": "\xed\xa0\x80"}',
        b'{"input": "\n"}',
        '{"input": "a"}'.encode("utf-16"),
        b'{"input": ' + b"[" * 400_000,
        b'{"input": ' + b"[" * 400_000 + b"]" * 400_000 + b"}",
        b'{"a":' * (MAX_DEPTH + 1) + b"1" + b"}" * (MAX_DEPTH + 1),
        b" ",
    ],
)
def test_a_body_that_is_no_json_is_told_so(client: FlaskClient, body: bytes) -> None:
    for route in ("/orders", "/ignores"):
        document(post(client, body, to=route), 400, "invalid_json")


def test_the_place_of_a_mistake_is_told_and_the_text_is_not(client: FlaskClient) -> None:
    answer = post(client, b'{\n "input": hunter2}')

    assert "line 2, column 11" in document(answer, 400, "invalid_json")["detail"]
    assert "hunter2" not in answer.text


def test_depth_is_allowed_up_to_the_limit() -> None:
    deep = b'{"a":' * MAX_DEPTH + b"1" + b"}" * MAX_DEPTH
    wide = json.dumps({"a": [[1]] * 10_000}).encode()

    assert parse_object(deep)
    assert parse_object(wide)
    with pytest.raises(InvalidJson, match="deeper"):
        parse_object(b'{"a":' + deep + b"}")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (rb'{"input": "a\ud800"}', "input"),
        (rb'{"input": "a", "metadata": {"x": ["b", "\uDFFFc"]}}', "metadata.x.1"),
        (rb'{"input": "a", "metadata": {"\udc00": 1}}', "metadata"),
        (rb'{"\uD83D": 1}', ""),
    ],
)
def test_half_a_character_is_refused_with_its_field(client: FlaskClient, body: bytes, field: str) -> None:
    found = document(post(client, body), 422, "invalid_request")

    assert [each["field"] for each in found["errors"]] == [field]


def test_whole_characters_pass_also_when_they_are_escaped(client: FlaskClient) -> None:
    body = rb'{"input": "\ud83d\ude00 \\ud800 \u00e9"}'

    assert post(client, body).get_json()["input"] == "😀 \\ud800 é"


# -- media type and size ---------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"])
def test_another_media_type_is_refused(client: FlaskClient, kind: str) -> None:
    document(post(client, b'{"input": "hi"}', kind), 415, "unsupported_media_type")


@pytest.mark.parametrize("kind", ["application/json; charset=UTF-8", "application/merge-patch+json", ""])
def test_json_by_another_name_or_none_is_read(client: FlaskClient, kind: str) -> None:
    assert post(client, b'{"input": "hi"}', kind).status_code == 200


def test_another_charset_is_refused(client: FlaskClient) -> None:
    answer = post(client, '{"input": "é"}'.encode("latin-1"), "application/json; charset=iso-8859-1")

    document(answer, 400, "invalid_json")


def test_a_body_over_a_mebibyte_is_refused_with_and_without_a_length(client: FlaskClient) -> None:
    body = b'{"input": "' + b"a" * MAX_BODY_BYTES + b'"}'

    for route in ("/orders", "/ignores"):
        document(post(client, body, to=route), 413, "payload_too_large")
        chunked = client.post(
            route,
            input_stream=io.BytesIO(body),
            content_type="application/json",
            environ_overrides={"wsgi.input_terminated": True, "HTTP_TRANSFER_ENCODING": "chunked"},
        )
        document(chunked, 413, "payload_too_large")


@pytest.mark.parametrize("is_chunked", [False, True], ids=["with-a-length", "in-chunks"])
@pytest.mark.parametrize(("route", "most"), [("/orders", "1 MiB"), ("/imports", "32 MiB")])
def test_the_words_about_a_body_that_is_too_large_name_the_limit_of_its_route(
    client: FlaskClient, route: str, most: str, is_chunked: bool
) -> None:
    body = io.BytesIO(b"x" * (LARGER_BODIES["import_session"] + 1))
    length = {"wsgi.input_terminated": True} if is_chunked else {"CONTENT_LENGTH": str(body.getbuffer().nbytes)}
    answer = client.post(route, input_stream=body, content_type="application/jsonl", environ_overrides=length)

    assert document(answer, 413, "payload_too_large")["detail"] == f"A body may be {most} at most"


def test_a_body_of_exactly_a_mebibyte_passes(client: FlaskClient) -> None:
    frame = b'{"input": ""}'
    body = b'{"input": "' + b"a" * (MAX_BODY_BYTES - len(frame)) + b'"}'

    assert len(body) == MAX_BODY_BYTES
    assert post(client, body).status_code == 200


def test_a_body_without_a_length_of_exactly_a_mebibyte_passes(client: FlaskClient) -> None:
    frame = b'{"input": ""}'
    body = b'{"input": "' + b"a" * (MAX_BODY_BYTES - len(frame)) + b'"}'

    answer = client.post(
        "/orders",
        input_stream=io.BytesIO(body),
        content_type="application/json",
        environ_overrides={"wsgi.input_terminated": True},
    )
    assert answer.status_code == 200


def test_a_body_that_broke_off_is_not_taken_for_a_whole_one(client: FlaskClient) -> None:
    answer = client.post(
        "/orders",
        input_stream=io.BytesIO(b'{"input": "hi"}'),
        content_type="application/json",
        environ_overrides={"wsgi.input_terminated": True, "CONTENT_LENGTH": "100"},
    )

    document(answer, 400, "bad_request")
