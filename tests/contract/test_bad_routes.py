"""Bodies that are too large, places that are not there, and what is no HTTP: told by a problem document, never HTML."""

import json
import socket
from urllib.parse import urlsplit

import pytest

from tests.support.api_client import PATIENCE_S, Api, parse_events
from tests.support.model_server import script
from tests.support.plans import say_done
from tests.support.problems import assert_problem
from tests.support.servers import ServerProcess

MIB = 1024 * 1024
JSON = {"Content-Type": "application/json"}


@pytest.mark.parametrize("is_chunked", [False, True], ids=["with-a-length", "in-chunks"])
@pytest.mark.parametrize("path", ["/v1/runs", "/stopplan"])
def test_a_body_above_one_mebibyte_is_too_large(server: ServerProcess, key: str, path: str, is_chunked: bool) -> None:
    body = json.dumps({"input": "x" * MIB}).encode()
    pieces = (body[at : at + 65536] for at in range(0, len(body), 65536))
    api = server.api(key)
    answer = api.request("POST", path, data=pieces if is_chunked else body, headers=JSON)
    assert_problem(answer, 413, "payload_too_large")
    assert api.get("/v1/runs")["runs"] == []


def test_a_body_just_below_one_mebibyte_is_taken(api: Api, key: str) -> None:
    line = say_done(key)
    run = api.start(line + "\n" + "x" * (MIB - 500 - len(line)), session_id=f"large-{key}")
    assert "turn_completed" in [event["type"] for event in run.events()]


def test_another_media_type_is_refused(api: Api) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"):
        answer = api.request("POST", "/v1/runs", data=b'{"input": "x"}', headers={"Content-Type": kind})
        assert_problem(answer, 415, "unsupported_media_type")


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nowhere", 404, "not_found"),
        ("POST", "/v1/runs/r_none/explode", 404, "not_found"),
        ("GET", "/v1/runs/", 404, "not_found"),
        ("GET", "/v1/runs/r_none", 404, "not_found"),
        ("GET", "/v1/runs/%00", 404, "not_found"),
        ("GET", "/v1/runs/..%2f..%2fetc%2fpasswd", 404, "not_found"),
        ("GET", "/v1/runs/r_none/events", 404, "not_found"),
        ("DELETE", "/v1/runs", 405, "method_not_allowed"),
        ("GET", "/stopplan", 405, "method_not_allowed"),
        ("PUT", "/v1/runs/r_none/cancel", 405, "method_not_allowed"),
    ],
)
def test_an_unknown_place_is_told_in_json_and_never_in_html(
    api: Api, method: str, path: str, status: int, code: str
) -> None:
    answer = api.request(method, path, headers={"Accept": "text/html"})
    assert_problem(answer, status, code)
    assert status != 405 or answer.headers["Allow"]


def test_an_unknown_turn_of_a_known_run_does_not_exist(api: Api, key: str) -> None:
    run = api.start(say_done(key))
    run.events()
    assert_problem(api.request("GET", f"{run.path}/plan?turn_id=t_none"), 404, "not_found")


@pytest.mark.parametrize(
    "raw",
    [b"nonsense\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\n\r\n"],
    ids=["no-http", "unknown-version", "endless-line"],
)
def test_what_is_no_http_gets_no_html_either(server: ServerProcess, raw: bytes) -> None:
    place = urlsplit(server.url)
    with socket.create_connection((place.hostname or "", place.port or 0), timeout=PATIENCE_S) as peer:
        peer.sendall(raw)
        answer = b""
        while data := peer.recv(65536):
            answer += data
    assert answer.startswith(b"HTTP/1.1 4")
    assert b"<html" not in answer
    assert b"Traceback" not in answer


@pytest.mark.parametrize("path", ["/v1/runs/a%00b", "/v1/sessions/a%00/export"])
def test_an_address_with_a_nul_in_it_is_none(api: Api, path: str) -> None:
    assert_problem(api.request("GET", path), 404, "not_found")


def test_a_cursor_that_is_none_is_refused(api: Api) -> None:
    assert_problem(api.request("GET", "/v1/runs?cursor=foo"), 422, "invalid_request")


def test_a_reader_that_asks_for_what_is_not_there_yet_still_sees_the_end(api: Api, key: str) -> None:
    run = api.start(script("trickle", tokens=1, key=key), interactive=False)
    run.wait_parked()
    last = run.view()["last_seq"]
    answer = api.request("GET", f"{run.path}/events?after={last + 1000}", stream=True)
    assert list(parse_events(answer)) == []  # it ends: there is nothing more
    run = api.start(script("trickle", tokens=1, key=key), session_id=run.session_id)
    with run.stream(after=10**6) as reader:
        run.wait_parked()
        run.terminate()
        assert reader.collect_type("run_cancelled")


def test_json_lines_are_for_imports_only_and_a_broken_line_is_named(api: Api) -> None:
    lines = {"Content-Type": "application/jsonl"}
    assert_problem(api.request("POST", "/v1/runs", data=b"{}", headers=lines), 415, "unsupported_media_type")
    broken = api.request("POST", "/v1/sessions/import", data=b'\xef\xbb\xbf{}\r\n\r\n{"type', headers=lines)
    assert_problem(broken, 400, "invalid_json")
    assert broken.json()["detail"].startswith("Line 3")
