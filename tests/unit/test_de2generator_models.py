"""The stand-in's list of models, as the vendors' own clients read it; and script lines for one model only."""

import json
from collections.abc import Iterator

import anthropic
import openai
import pytest

from tests.support.model_server import ModelServer, script

NAMES = ("a-3", "a-1", "b-2", "c", "d")


@pytest.fixture(scope="module")
def listing() -> Iterator[ModelServer]:
    """A gateway with several models."""
    with ModelServer(listed=NAMES) as server:
        yield server


def test_openais_client_reads_the_list(listing: ModelServer) -> None:
    with openai.OpenAI(base_url=f"{listing.url}/v1", api_key="k", max_retries=0) as client:
        assert [model.id for model in client.models.list()] == list(NAMES)


@pytest.mark.parametrize("limit", [1, 2, 5, 1000])
def test_anthropics_client_follows_the_pages(listing: ModelServer, limit: int) -> None:
    with anthropic.Anthropic(base_url=listing.url, api_key="k", max_retries=0) as client:
        assert [model.id for model in client.models.list(limit=limit)] == list(NAMES)


def test_a_wrong_page_is_a_400_in_the_form_of_the_api(listing: ModelServer) -> None:
    with anthropic.Anthropic(base_url=listing.url, api_key="k", max_retries=0) as client:
        for wrong in ({"limit": 0}, {"limit": 1001}, {"after_id": "nobody"}):
            with pytest.raises(anthropic.BadRequestError):
                client.models.list(**wrong)


def test_a_gateway_without_names_lists_itself(models: ModelServer) -> None:
    _, body = models.request("GET", "/v1/models")
    assert [model["id"] for model in body["data"]] == ["stand-in"]


def test_a_line_for_one_model_is_for_no_other(listing: ModelServer) -> None:
    lines = "\n".join((script("error", status=404, model="a-*"), script("trickle", tokens=1, interval_ms=0, model="b-2")))
    answers = {}
    for model in ("a-1", "b-2"):
        body = {"model": model, "messages": [{"role": "user", "content": lines}]}
        answers[model] = listing.request("POST", "/v1/chat/completions", body)
    assert answers["a-1"][0] == 404
    assert answers["b-2"][1]["choices"][0]["message"]["content"] == "t1 "


def test_a_tool_may_be_called_in_one_piece(models: ModelServer) -> None:
    line = script("toolcall", whole=1, arguments={"command": "echo a b"})
    body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": line}]}
    _, answer = models.request("POST", "/v1/chat/completions", body)
    (call,) = answer["choices"][0]["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"command": "echo a b"}
