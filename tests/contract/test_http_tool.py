"""The HTTP tool over HTTP: an agent asks a server on loopback, and a stop, an end or a limit comes in the middle."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.api_client import Api, Run
from tests.support.five_checks import five_checks
from tests.support.going_back import of_type, system_of
from tests.support.http_kit import answers, redirects, requests_of, says, wait_seen_close
from tests.support.model_server import ModelServer, script
from tests.support.plans import goal, start_plan
from tests.support.raw_server import PATIENCE_S, RawServer
from tests.support.servers import ServerProcess

SO_FAR = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 9999\r\n\r\nso far, "
CAP = 5000


@pytest.fixture(scope="module")
def http_server(models: ModelServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server whose agents may reach loopback."""
    with ServerProcess(
        tmp_path_factory.mktemp("http-server"), models.url, TOOLS_ALLOWED="http_request",
        HTTP_PRIVATE_NETWORKS="127.0.0.0/8", TOOL_OUTPUT_BYTES=str(CAP),
    ) as process:  # fmt: skip
        yield process


@pytest.fixture
def user(http_server: ServerProcess, key: str) -> Api:
    return http_server.api(key)


def _ask(key: str, *calls: dict[str, Any], **options: Any) -> str:
    """A line by which the model calls the tool, once for each at the same time."""
    arguments = [json.dumps(call, separators=(",", ":")) for call in calls]
    return script("toolcall", name=["http_request"] * len(calls), arguments=arguments, tokens=2, key=key, **options)


def _content(run: Run) -> tuple[str, dict[str, Any]]:
    """The one tool result of the run, in two parts: what the server put before the tool's own, and that."""
    (message,) = [message for message in run.transcript() if message["role"] == "tool"]
    words, _, content = message["content"].rpartition("\n")
    return words, json.loads(content)


def _outcomes(receipt: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
    return [(item["kind"], item["outcome"], item["how"]) for item in receipt if item["kind"] != "goal"]


# -- answers -----------------------------------------------------------------------------------


def test_an_agent_asks_a_server_and_the_model_reads_the_answer(user: Api, models: ModelServer, key: str) -> None:
    with RawServer(redirects("/1", last=b"the-answer")) as server:
        run = user.start(_ask(key, {"url": server.url, "headers": {"X-One": "1"}}))
        run.wait_parked()
        assert [sent.headers["x-one"] for sent in requests_of(server)] == ["1", "1"]
    _, answer = _content(run)
    assert (answer["status"], answer["body"], answer["url"]) == (200, "the-answer", f"{server.url}/1")
    assert answer["success"] is True
    assert [event["text"] for event in of_type(run, "tool_output")] == ["the-answer"]
    assert models.calls(key=key)[0].tools == ["http_request"]
    assert "the-answer" in models.calls(key=key)[1].messages[-1]["content"]
    assert run.transcript()[-1]["content"] == "t1 t2 "
    five_checks(run, models, key)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ({"url": "ftp://127.0.0.1/"}, "must begin with http"),
        ({"url": "http://10.0.0.1/"}, "has no public address"),
        ({"url": "http://169.254.169.254/latest/meta-data/"}, "has no public address"),
        ({"url": "http://127.0.0.1/", "headers": {"Host": "x"}}, "is set by the server itself"),
        ({"url": "http://127.0.0.1/", "method": "TRACE"}, "'TRACE' is not one of"),
        ({}, "'url' is a required property"),
    ],
)
def test_a_request_that_may_not_be_made_is_told_to_the_model_and_the_loop_goes_on(
    user: Api, models: ModelServer, key: str, call: dict[str, Any], words: str
) -> None:
    run = user.start(_ask(key, call))
    run.wait_parked()
    (result,) = of_type(run, "tool_result")
    assert result["is_error"] is True
    assert words in result["content"]
    assert run.goals()["answer"]["status"] == "COMPLETED"
    five_checks(run, models, key)


def test_loopback_is_refused_unless_the_operator_allows_it(models: ModelServer, key: str, tmp_path: Path) -> None:
    with (
        RawServer(answers(b"secret")) as server,
        ServerProcess(tmp_path, models.url, TOOLS_ALLOWED="http_request") as own,
    ):
        run = own.api(key).start(_ask(key, {"url": server.url}))
        run.wait_parked()
        (result,) = of_type(run, "tool_result")
        assert "HTTP_PRIVATE_NETWORKS" in result["content"]
        assert server.peers == []
        five_checks(run, models, key)


def test_a_goal_that_is_a_request_gives_its_answer_to_its_dependents(user: Api, models: ModelServer, key: str) -> None:
    with RawServer(answers(b"the-answer")) as server:
        tool = {"name": "http_request", "arguments": {"url": server.url}}
        run = start_plan(user, {"id": "tool", "tool": tool}, goal("answer", script("strict", key=key), "tool"))
        run.wait_parked()
    (request,) = models.calls(key=key)
    assert "the-answer" in system_of(request)
    five_checks(run, models, key)


# -- stops -------------------------------------------------------------------------------------


def test_a_stop_in_the_body_is_seen_by_the_server_and_what_had_come_stays(
    user: Api, models: ModelServer, key: str
) -> None:
    with RawServer(says(SO_FAR)) as server:
        run = user.start(_ask(key, {"url": server.url}))
        run.wait_event("tool_output", text="so far, ")
        answer = run.cancel(wait_ms=30_000)
        wait_seen_close(server)
    assert answer["parked"] is True
    assert _outcomes(answer["receipt"]) == [("tool", "aborted", "socket shut")]
    words, content = _content(run)
    assert words == "cancelled by operator"
    assert (content["status"], content["body"], content["interrupted"]) == (200, "so far, ", True)
    assert content["success"] is False
    five_checks(run, models, key)


@pytest.mark.parametrize("sent", [b"", b"HTTP/1.1 200 O"], ids=["silence", "half-a-line"])
def test_a_stop_before_the_answer_is_seen_by_the_server(user: Api, models: ModelServer, key: str, sent: bytes) -> None:
    with RawServer(says(sent)) as server:
        run = user.start(_ask(key, {"url": server.url, "method": "POST", "body": "x"}))
        assert server.peer().reached.wait(PATIENCE_S)
        answer = run.cancel(wait_ms=30_000)
        wait_seen_close(server)
    assert _outcomes(answer["receipt"]) == [("tool", "aborted", "socket shut")]
    words, content = _content(run)
    assert words == "cancelled by operator"
    assert (content["status"], content["body"], content["interrupted"]) == (None, "", True)
    five_checks(run, models, key)


def test_the_end_of_the_run_in_the_body_is_seen_by_the_server(user: Api, models: ModelServer, key: str) -> None:
    with RawServer(says(SO_FAR)) as server:
        run = user.start(_ask(key, {"url": server.url}))
        run.wait_event("tool_output", text="so far, ")
        run.terminate()
        wait_seen_close(server)
    run.events(lambda event: event["type"] == "run_cancelled")
    assert _content(run)[1]["body"] == "so far, "
    five_checks(run, models, key)


def test_stopplan_reaches_requests_of_several_goals(user: Api, models: ModelServer, key: str) -> None:
    with RawServer(says(SO_FAR)) as server:
        tool = {"name": "http_request", "arguments": {"url": server.url}}
        run = start_plan(user, *({"id": f"g{number}", "tool": tool} for number in range(5)))
        for number in range(5):
            assert server.peer(number).reached.wait(PATIENCE_S)
        assert user.post("/stopplan")["stopped"] is True
        for number in range(5):
            wait_seen_close(server, number)
        run.wait_parked()
    assert {each["status"] for each in run.goals(run.first_turn).values()} == {"CANCELLED"}
    five_checks(run, models, key)


def test_a_finished_request_keeps_its_answer_when_its_neighbour_is_stopped(
    user: Api, models: ModelServer, key: str
) -> None:
    with RawServer(answers(b"done")) as quick, RawServer(says(SO_FAR)) as slow:
        run = user.start(_ask(key, {"url": quick.url}, {"url": slow.url}))
        run.wait_event("tool_result")
        run.wait_event("tool_output", text="so far, ")
        run.cancel(wait_ms=30_000)
        wait_seen_close(slow)
    contents = [message["content"] for message in run.transcript() if message["role"] == "tool"]
    assert json.loads(contents[0])["body"] == "done"
    assert contents[1].startswith("cancelled by operator\n")
    five_checks(run, models, key)


# -- limits ------------------------------------------------------------------------------------


def test_the_time_limit_in_the_body_ends_the_request_and_not_the_turn(user: Api, models: ModelServer, key: str) -> None:
    with RawServer(says(SO_FAR)) as server:
        run = user.start(_ask(key, {"url": server.url, "timeout_ms": 300}))
        wait_seen_close(server)
        run.wait_parked()
    words, content = _content(run)
    assert words == ""
    assert (content["status"], content["body"], content["success"]) == (200, "so far, ", False)
    assert content["error"] == "the request was ended after 0.3 s"
    assert "interrupted" not in content
    assert run.goals()["answer"]["status"] == "COMPLETED"
    five_checks(run, models, key)


def test_too_long_an_answer_is_cut_at_the_cap_and_the_server_sees_it(user: Api, models: ModelServer, key: str) -> None:
    with RawServer(says(SO_FAR + b"x" * CAP)) as server:
        run = user.start(_ask(key, {"url": server.url}))
        wait_seen_close(server)
        run.wait_parked()
    words, content = _content(run)
    assert (words, len(content["body"])) == ("", CAP)
    assert content["error"] == f"the answer was longer than {CAP} bytes; the request was ended"
    assert "interrupted" not in content
    five_checks(run, models, key)
