"""Characters that a model server cuts in two, and connections that are given back."""

import json
import time
from pathlib import Path

import pytest

from de2generator.odd_scripts import SPLIT_TEXT
from tests.support.api_client import in_threads
from tests.support.five_checks import five_checks
from tests.support.model_server import ModelServer, script
from tests.support.plans import goal, say_done, start_plan
from tests.support.raw_server import Peer, RawServer
from tests.support.servers import ServerProcess, wait_until
from tests.support.sockets import count_connections

OFFSETS = range(-12, len(SPLIT_TEXT.encode()) + 12)


@pytest.mark.parametrize("every", [0, 1], ids=["cut-in-two", "byte-by-byte"])
def test_text_is_the_same_wherever_its_bytes_are_cut(
    any_server: ServerProcess, models: ModelServer, key: str, every: int
) -> None:
    goals = [
        goal(f"at{offset}", script("split", offset=offset, pause_ms=15, every=every, key=key)) for offset in OFFSETS
    ]
    run = start_plan(any_server.api(), *goals)
    events = run.events()
    assert "turn_completed" in [event["type"] for event in events]
    assert {each["result"] for each in run.goals().values()} == {SPLIT_TEXT}
    streamed: dict[str, str] = {}
    for event in events:
        if event["type"] == "text":
            streamed[event["goal_id"]] = streamed.get(event["goal_id"], "") + event["text"]
    assert set(streamed.values()) == {SPLIT_TEXT}
    five_checks(run, models, key)


def test_a_character_in_two_escapes_comes_out_whole(any_server: ServerProcess, models: ModelServer, key: str) -> None:
    run = any_server.api().start(script("surrogates", key=key))
    events = run.events()
    assert "".join(event["text"] for event in events if event["type"] == "text") == "before \U0001f642 after"
    assert run.transcript()[-1]["content"] == "before \U0001f642 after"
    five_checks(run, models, key)


def test_a_stop_in_the_middle_of_a_characters_bytes_leaves_valid_text(
    any_server: ServerProcess, models: ModelServer, key: str
) -> None:
    run = any_server.api().start(script("split", every=1, pause_ms=60_000, key=key))
    (call,) = models.wait_open(1, key=key)
    wait_until(lambda: models.calls(key=key)[0].bytes_sent > 0, "the first bytes are out")
    assert run.cancel(wait_ms=30_000)["parked"] is True
    assert run.transcript()[-1]["content"] == "[stopped by the user before any text]"
    assert call.tokens_sent == 0
    five_checks(run, models, key)


@pytest.mark.parametrize("provider", ["de2generator", "openai"])
def test_a_stop_between_the_two_halves_of_a_character_keeps_what_was_whole(tmp_path: Path, provider: str) -> None:
    with RawServer(_half_a_character) as gateway:
        url = gateway.url + ("/v1" if provider == "openai" else "")
        with ServerProcess(tmp_path, url, LLM_PROVIDER=provider) as server:
            run = server.api().start("say half a character")
            run.wait_event("text")
            assert gateway.peer(0).reached.wait(10)
            assert run.cancel(wait_ms=30_000)["parked"] is True
            said = run.transcript()[-1]["content"]
            assert said.encode() == said.encode("utf-8", "strict")
            assert said.rstrip("\ufffd") == "whole \u00e9 "
            assert gateway.peer(0).gone.wait(10)
            run.say("finish")
            assert run.events(after=run.view()["last_seq"] - 1)[-1]["type"] == "awaiting_input"


@pytest.mark.timeout(180)
@pytest.mark.parametrize("rounds", [12, pytest.param(50, marks=pytest.mark.slow)])
def test_many_starts_and_stops_leave_no_call_and_no_connection_behind(
    any_server: ServerProcess, models: ModelServer, key: str, rounds: int
) -> None:
    at_once, before = 4, count_connections(any_server, models.url)["ESTABLISHED"]

    def start_and_stop(number: int) -> None:
        api = any_server.api()
        run = api.start(say_done(f"{key}-{number}"))
        run.wait_parked()
        for turn in range(rounds):
            name = f"{key}-{number}-{turn}"
            run.say(script("trickle" if turn % 2 else "silent", tokens=500, interval_ms=10, key=name))
            models.wait_calls(1, key=name)
            assert run.cancel(wait_ms=30_000)["parked"] is True

    in_threads(at_once, start_and_stop, patience_s=120)
    assert [call for call in models.calls(only_open=True) if call.key.startswith(key)] == []
    asked_at = time.monotonic()
    run = any_server.api().start(say_done(f"{key}-next"))
    run.wait_event("turn_completed")
    assert time.monotonic() - asked_at < 1
    wait_until(lambda: count_connections(any_server, models.url)["CLOSE_WAIT"] == 0, "dead sockets are closed")
    assert count_connections(any_server, models.url)["ESTABLISHED"] < before + at_once * rounds
    five_checks(run, models, f"{key}-next")


def _half_a_character(peer: Peer) -> None:
    """Says some whole text and half of a pair of escapes; answers the request after the stop."""
    for request in iter(peer.read_request, None):
        if request.path == "/v1/cancel":
            peer.answer(b'{"status": "cancelled"}')
        elif json.loads(request.body)["messages"][-1]["content"] == "finish":
            peer.answer(b'{"choices": [{"message": {"content": "ok"}, "finish_reason": "stop"}]}')
        else:
            peer.begin_stream()
            for text in (rb"whole \u00e9 ", rb"\ud83d"):
                peer.chunk(b'data: {"choices": [{"delta": {"content": "' + text + b'"}}]}\n\n')
            peer.reached.set()
            peer.wait_hang_up()
            return
