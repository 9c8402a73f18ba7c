"""From settings to a provider; and the `responses` library in front of one."""

import json

import pytest
import responses

from core.cancellation import GoalCancelledException
from core.errors import ConfigurationError, ProviderRejected
from core.provider.de2generator import De2GeneratorProvider
from core.provider.make_provider import make_provider
from core.provider.openai import OpenAIProvider
from tests.support.provider_kit import DONE, HELLO, STOP, WHOLE, frame, new_call, reply, text_of


def test_each_kind_is_made_and_says_how_it_is_stopped() -> None:
    de2 = make_provider("de2generator", "http://127.0.0.1:1")
    openai = make_provider("openai", "http://127.0.0.1:1/v1", "key")

    assert isinstance(de2, De2GeneratorProvider)
    assert de2.can_be_asked
    assert isinstance(openai, OpenAIProvider)
    assert not openai.can_be_asked


@pytest.mark.parametrize("url", ["", "127.0.0.1:80", "ftp://h/", "http://", "http://h:99999", "http://h/v1?x=1"])
def test_a_wrong_address_is_a_configuration_error(url: str) -> None:
    with pytest.raises(ConfigurationError, match="LLM_BASE_URL"):
        make_provider("openai", url)


@pytest.mark.parametrize("key", ["a\nb", "schlüssel", "a\x00"])
def test_a_key_that_no_header_can_carry_is_a_configuration_error(key: str) -> None:
    with pytest.raises(ConfigurationError, match="LLM_API_KEY"):
        make_provider("openai", "http://h/v1", key)


def test_an_unknown_kind_is_a_configuration_error() -> None:
    with pytest.raises(ConfigurationError, match="LLM_PROVIDER"):
        make_provider("magic", "http://h/v1")


def test_a_blank_key_sends_no_header() -> None:
    with responses.RequestsMock() as mock:
        mock.post("http://h/v1/chat/completions", body=WHOLE, content_type="application/json")

        reply(OpenAIProvider("http://h/v1/", "  \n"))

        assert "Authorization" not in mock.calls[0].request.headers


def test_a_mocked_stream_is_read() -> None:
    with responses.RequestsMock() as mock:
        body = frame("mo") + frame("ck") + STOP + DONE
        mock.post("http://h/v1/chat/completions", body=body, content_type="text/event-stream")

        assert text_of(reply(OpenAIProvider("http://h/v1"))) == "mock"


def test_mocked_statuses_are_the_usual_errors() -> None:
    with responses.RequestsMock() as mock:
        mock.post("http://g/v1/chat/completions", status=499)
        mock.post("http://g/v1/chat/completions", status=429, headers={"Retry-After": "3"})
        provider = De2GeneratorProvider("http://g")

        with pytest.raises(GoalCancelledException):
            list(provider.stream(HELLO, new_call(provider)))
        with pytest.raises(ProviderRejected):
            list(provider.stream(HELLO, new_call(provider)))


def test_a_mocked_cancel_request_is_answered() -> None:
    with responses.RequestsMock() as mock:
        mock.post("http://g/v1/cancel", json={"status": "already_cancelled"})
        provider = De2GeneratorProvider("http://g")
        call = new_call(provider)

        assert provider.ask_cancel(call, 5) == "already_cancelled"

        sent = mock.calls[0].request.body
        assert json.loads(sent or "") == {"cancellation_token": call.token}
