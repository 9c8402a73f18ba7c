"""Chat and STOP with real weights: llama.cpp's own server, alone and behind the stand-in gateway.

What it says is nonsense, or random; what is looked at is that it streams, that it stops, and when.
"""

import json
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from de2generator.llama import LlamaServer, find_smollm2
from tests.support.api_client import PATIENCE_S, Run
from tests.support.model_server import ModelServer
from tests.support.servers import ServerProcess
from tests.support.tiny_model import write_tiny_model

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model that talks for as long as it is let."""
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny.gguf")


@pytest.fixture(scope="module")
def llama(tiny_model: Path) -> Iterator[LlamaServer]:
    """llama.cpp's own OpenAI-compatible server."""
    with LlamaServer(tiny_model) as server:
        yield server


@pytest.fixture(scope="module")
def direct(llama: LlamaServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Our server in front of it, with no gateway between."""
    folder = tmp_path_factory.mktemp("direct")
    with ServerProcess(folder, llama.url, LLM_PROVIDER="openai", LLM_MODEL="tiny") as server:
        yield server


@pytest.fixture(scope="module")
def gateway(tiny_model: Path) -> Iterator[ModelServer]:
    """The stand-in gateway with the same model behind it."""
    with ModelServer(model_file=tiny_model) as server:
        yield server


@pytest.fixture(scope="module")
def behind_gateway(gateway: ModelServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Our server, the gateway, the model."""
    with ServerProcess(tmp_path_factory.mktemp("gateway"), gateway.url) as server:
        yield server


def _slots(llama: LlamaServer) -> list[dict[str, Any]]:
    """The places in which the model makes answers, as its own server tells of them."""
    with urllib.request.urlopen(f"{llama.url.removesuffix('/v1')}/slots", timeout=PATIENCE_S) as answer:
        slots: list[dict[str, Any]] = json.load(answer)
    return slots


def _busy_slots(llama: LlamaServer) -> int:
    """How many answers the model is making now."""
    return sum(slot["is_processing"] for slot in _slots(llama))


def _wait_slots(llama: LlamaServer, busy: int, every_s: float = 0.01) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while _busy_slots(llama) != busy:
        assert time.monotonic() < deadline, f"{_busy_slots(llama)} slots are busy, not {busy}"
        time.sleep(every_s)  # llama.cpp has nothing that would wake us


def _wait_text(run: Run, pieces: int, after: int = 0) -> None:
    seen = []
    with run.stream(after) as reader:
        reader.collect(lambda event: event["type"] == "text" and (seen.append(event) or len(seen) >= pieces))


def test_stop_shuts_the_connection_and_the_model_stops(direct: ServerProcess, llama: LlamaServer) -> None:
    run = direct.api().start("Tell me a long story")
    _wait_text(run, 20)
    _wait_slots(llama, 1)
    answer = run.cancel(wait_ms=20_000)
    assert answer["stopped"] is True
    assert answer["parked"] is True
    assert [item["outcome"] for item in answer["receipt"] if item["kind"] == "model_call"] == ["aborted"]
    _wait_slots(llama, 0)


def test_parallel_goals_all_stop_and_what_was_said_stays(direct: ServerProcess, llama: LlamaServer) -> None:
    goals = [{"id": name, "prompt": f"Talk about {name}"} for name in ("rivers", "hills", "clouds")]
    run = direct.api().start("Three talks", plan={"goals": goals})
    _wait_slots(llama, 3)
    _wait_text(run, 30)
    answer = direct.api().post("/stopplan")
    assert answer["stopped"] is True
    assert run.wait_parked() == "awaiting_input"
    _wait_slots(llama, 0)
    assert {goal["status"] for goal in run.goals().values()} == {"CANCELLED"}
    message = run.transcript()[-1]
    assert message["stopped"] is True
    assert len(message["content"]) > 30


def test_the_next_message_works_after_a_stop(direct: ServerProcess, llama: LlamaServer) -> None:
    run = direct.api().start("One")
    _wait_text(run, 5)
    run.cancel(wait_ms=20_000)
    seen = run.view()["last_seq"]
    run.say("Two")
    _wait_text(run, 5, after=seen)
    run.cancel(wait_ms=20_000)
    assert [message["role"] for message in run.transcript()] == ["user", "assistant"] * 2
    _wait_slots(llama, 0)


def test_a_stop_while_a_real_model_plans_reaches_it(direct: ServerProcess, llama: LlamaServer) -> None:
    run = direct.api().start("Do three things", planning="auto")
    answer = run.cancel(wait_ms=20_000)  # a random model would go on for ever
    assert answer["stopped"] is True
    _wait_slots(llama, 0)


def test_a_stop_while_the_model_reads_a_long_prompt_ends_the_reading(tmp_path: Path) -> None:
    words = " ".join(f"word{number}" for number in range(450))  # about 1,800 tokens: many seconds of reading
    with LlamaServer(find_smollm2()) as llama, ServerProcess(tmp_path, llama.url, LLM_PROVIDER="openai") as server:
        run = server.api().start(f"Say more about these: {words}")
        _wait_slots(llama, 1)
        asked_at = time.monotonic()
        answer = run.cancel(wait_ms=20_000)
        assert time.monotonic() - asked_at < 2
        assert answer["parked"] is True
        assert [item["outcome"] for item in answer["receipt"] if item["kind"] == "model_call"] == ["aborted"]
        assert run.transcript()[-1]["content"] == "[stopped by the user before any text]"
        # It looks after its client once a second in which it has answered nobody else: we must not ask too often.
        _wait_slots(llama, 0, every_s=2.5)
        (left,) = (slot for slot in _slots(llama) if slot.get("n_prompt_tokens"))
        assert left["n_prompt_tokens"] < 1000  # it has not read on to the end
        assert left["next_token"][0]["n_decoded"] == 0  # nor said a word


def test_behind_the_gateway_the_stop_is_asked_for_by_token_and_answered_499(
    behind_gateway: ServerProcess, gateway: ModelServer
) -> None:
    gateway.clear()
    run = behind_gateway.api().start("Tell me a long story")
    gateway.wait_tokens(20)
    answer = run.cancel(wait_ms=20_000)
    assert answer["parked"] is True
    (call,) = gateway.wait_closed(1)
    assert call.asked_to_cancel_at is not None
    assert call.tokens_after_stop <= 2
    assert [item["outcome"] for item in answer["receipt"] if item["kind"] == "model_call"] == ["cancelled"]


def test_a_person_can_chat_with_the_packaged_weights(tmp_path: Path) -> None:
    with ModelServer(smollm2=True) as gateway, ServerProcess(tmp_path, gateway.url) as server:
        run = server.api().start("Tell me a long story about the sea.")
        _wait_text(run, 1)  # not more: pieces that come fast are joined
        run.cancel(wait_ms=20_000)
        run.say("What is the capital of France? Answer with one word.")
        turns = run.events(lambda event: event["type"] == "turn_started" and event["number"] == 2)
        _wait_text(run, 1, after=turns[-1]["seq"])
        run.cancel(wait_ms=20_000)
        assert all(message["content"] for message in run.transcript())
