"""The stand-in gateway in front of another model server."""

import http.client
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.chat_client import asking, text_of
from tests.support.model_server import ModelServer, script
from tests.support.tiny_model import write_tiny_model


@pytest.fixture(scope="module")
def behind() -> Iterator[ModelServer]:
    """The model server behind: a gateway too, since one whose scripts are known."""
    with ModelServer() as server:
        yield server


@pytest.fixture(scope="module")
def front(behind: ModelServer) -> Iterator[ModelServer]:
    with ModelServer(upstream=f"{behind.url}/v1") as server:
        yield server


@pytest.fixture(autouse=True)
def _cleared(front: ModelServer, behind: ModelServer) -> None:
    front.clear()
    behind.clear()


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModelServer]:
    """llama.cpp's server with the tiny model behind a gateway."""
    model = write_tiny_model(tmp_path_factory.mktemp("model") / "tiny.gguf")
    with ModelServer(model_file=model) as server:
        yield server


def test_a_stream_passes_through_as_it_is(front: ModelServer, behind: ModelServer) -> None:
    with asking(front.url, script("trickle", tokens=3, interval_ms=1), token="secret", temperature=0.5) as asked:
        *events, done = asked.events()
    assert text_of(events) == "t1 t2 t3 "
    assert all(event["choices"] for event in events)
    assert done == "[DONE]"
    assert front.wait_closed(1)[0].tokens_sent == 3
    [seen] = behind.wait_closed(1)
    assert seen.token is None


def test_a_whole_reply_is_streamed_behind_and_put_together(front: ModelServer, behind: ModelServer) -> None:
    line = script("toolcall", name="shell", arguments={"command": "echo some words that take two pieces"}, text=1)
    with asking(front.url, line, stream=False) as asked:
        reply = asked.json()
    message = reply["choices"][0]["message"]
    assert message["content"] == "I will use a tool. "
    assert message["tool_calls"][0]["function"] == {
        "name": "shell",
        "arguments": '{"command":"echo\\u0020some\\u0020words\\u0020that\\u0020take\\u0020two\\u0020pieces"}',
    }
    assert reply["choices"][0]["finish_reason"] == "tool_calls"
    assert reply["usage"]["completion_tokens"] > 0
    assert behind.wait_closed(1)[0].stream


@pytest.mark.parametrize("stream", [True, False])
def test_a_cancel_hangs_up_on_the_server_behind(front: ModelServer, behind: ModelServer, stream: bool) -> None:
    token = f"stop-{stream}"
    with asking(front.url, script("trickle", tokens=10_000, interval_ms=5), token=token, stream=stream) as asked:
        behind.wait_tokens(5)
        assert front.cancel(token) == "cancelled"
        if stream:
            assert asked.events()[-1]["error"]["code"] == 499
        else:
            assert asked.status == 499
    assert front.wait_closed(1)[0].close_reason == "cancelled"
    assert behind.wait_closed(1)[0].close_reason == "client_gone"


def test_a_silent_server_behind_is_hung_up_on_too(front: ModelServer, behind: ModelServer) -> None:
    with asking(front.url, script("silent"), token="silent") as asked:
        behind.wait_open(1)
        assert front.cancel("silent") == "cancelled"
        assert asked.status == 499
    assert behind.wait_closed(1)[0].close_reason == "client_gone"


def test_a_client_that_hangs_up_closes_the_call_behind(front: ModelServer, behind: ModelServer) -> None:
    with asking(front.url, script("trickle", tokens=10_000, interval_ms=5)) as asked:
        behind.wait_tokens(2)
        asked.hang_up()
        assert behind.wait_closed(1)[0].close_reason == "client_gone"
        assert front.wait_closed(1)[0].close_reason == "client_gone"


def test_a_refusal_keeps_its_status_and_message(front: ModelServer) -> None:
    with asking(front.url, script("error", status=503)) as asked:
        assert asked.status == 503
        assert asked.json()["error"]["message"] == "the model server failed"


def test_an_answer_that_breaks_off_behind_breaks_off_in_front(front: ModelServer) -> None:
    with (
        asking(front.url, script("drop", tokens=2, interval_ms=1)) as asked,
        pytest.raises(http.client.IncompleteRead),
    ):
        asked.response.read()
    assert front.wait_closed(1)[0].close_reason == "dropped"


def test_an_unreachable_server_behind_is_a_502() -> None:
    with ModelServer(upstream="http://127.0.0.1:1/v1") as front:
        with asking(front.url, "hello") as asked:
            assert asked.status == 502
        assert front.request("GET", "/v1/models")[0] == 502


def test_the_models_are_those_of_the_server_behind(front: ModelServer) -> None:
    assert front.request("GET", "/v1/models")[1]["data"][0]["id"] == "stand-in"


@pytest.mark.real
def test_a_real_stream_is_cancelled_by_its_token(llama: ModelServer) -> None:
    with asking(llama.url, "hello", token="real") as asked:
        llama.wait_tokens(50)
        assert llama.cancel("real") == "cancelled"
        *events, last = asked.events()
    assert last["error"]["code"] == 499
    assert text_of(events)
    assert llama.wait_closed(1)[-1].tokens_after_stop == 0


@pytest.mark.real
def test_a_real_whole_reply_carries_the_real_usage(llama: ModelServer) -> None:
    with asking(llama.url, "hello", stream=False, max_tokens=7) as asked:
        reply = asked.json()
    assert reply["usage"]["completion_tokens"] == 7
    assert reply["choices"][0]["finish_reason"] == "length"


@pytest.mark.real
def test_the_tiny_model_goes_on_past_its_context(llama: ModelServer) -> None:
    llama.clear()
    with asking(llama.url, "hello") as asked:
        llama.wait_tokens(2500, timeout_s=60)
        asked.hang_up()
        llama.wait_open(0)


@pytest.mark.real
def test_the_packaged_weights_answer() -> None:
    with ModelServer(smollm2=True) as server, asking(server.url, "Hello", stream=False, max_tokens=5) as asked:
        assert asked.json()["usage"]["completion_tokens"] == 5


@pytest.mark.real
def test_a_missing_model_file_is_one_clear_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "de2generator", "--port", "0", "--model-file", str(tmp_path / "none.gguf")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "no such model file" in done.stderr
    assert "Traceback" not in done.stderr
