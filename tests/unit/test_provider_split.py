"""A reply that is cut at any byte says the same; a stop in the middle of a character leaves whole text."""

import json

import pytest

from core.provider.openai import OpenAIProvider
from tests.support.provider_kit import (
    DONE,
    STOP,
    Running,
    frame,
    held_after_every_byte,
    reply,
    split_at_every_byte,
    text_at_the_stop,
    text_of,
)
from tests.support.raw_server import Peer, RawServer

TEXT = "é漢😀"


def test_a_cut_at_every_byte_of_the_stream_changes_nothing() -> None:
    stream = frame(TEXT) + STOP + DONE

    with RawServer(split_at_every_byte(stream)) as server:
        provider = OpenAIProvider(f"{server.url}/v1")

        for _ in range(1, len(stream)):
            assert text_of(reply(provider)) == TEXT


def test_a_stop_after_every_byte_of_the_stream_leaves_whole_text() -> None:
    stream = frame("a") + frame(TEXT)
    first = len(frame("a"))

    with RawServer(held_after_every_byte(stream, first)) as server:
        provider = OpenAIProvider(f"{server.url}/v1")
        for _ in range(len(stream) - first):
            assert text_at_the_stop(Running(provider)) == "a"


@pytest.mark.parametrize(
    ("pieces", "text"),
    [
        (["\ud83d", "\ude00!"], "😀!"),
        (["a\ud83d", "", "\ude00"], "a😀"),
        (["\ud83d", "x"], "\ufffdx"),
        (["\ude00x"], "\ufffdx"),
        (["x\ud83d"], "x\ufffd"),
        (["\ud83d\ud83d", "\ude00"], "\ufffd😀"),
    ],
)
def test_a_character_that_json_cut_in_two_is_joined_or_replaced(pieces: list[str], text: str) -> None:
    def script(peer: Peer) -> None:
        peer.read_request()
        peer.begin_stream()
        for piece in pieces:
            peer.chunk(b"data: %s\n\n" % json.dumps({"choices": [{"delta": {"content": piece}}]}).encode())
        peer.chunk(STOP + DONE)
        peer.chunk(b"")

    with RawServer(script) as server:
        deltas = reply(OpenAIProvider(f"{server.url}/v1"))

        assert text_of(deltas) == text
        text_of(deltas).encode()
