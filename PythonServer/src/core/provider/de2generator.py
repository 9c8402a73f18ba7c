"""The de²generator gateway: the OpenAI form with a cancellation token, a cancel request, and 499.

``POST {uri}/v1/chat/completions`` carries the token in ``metadata``; ``POST {uri}/v1/cancel`` names it.
"""

import json
from collections.abc import Generator
from typing import Any

import requests

from core.cancellation import Cancelled, Cause, CauseWord, Scope
from core.clock import alarm_clock
from core.errors import ProviderNonsense
from core.network.abortable import AbortableSocket
from core.network.abortable_http import Passenger
from core.provider.base_url import clean_key, clean_url
from core.provider.failures import ServerRejected, ServerUnreachable
from core.provider.http_client import Endpoint, HttpClient
from core.provider.http_failures import TRANSPORT_ERRORS, body_text, place, safe_excerpt, transport_failure
from core.provider.model_call import ModelCall
from core.provider.model_list import ModelList
from core.provider.openai_format import ChatReader, request_body
from core.provider.provider import Delta, ModelRequest
from core.provider.provider_http import stream_http
from core.provider.wire_names import tool_names

#: Connections kept for cancel requests, apart from those of the model requests, which may all be taken.
_CANCEL_POOL = 64
_MAX_CANCEL_BODY = 64 << 10
_YES = ("cancelled", "already_cancelled")


class De2GeneratorProvider:
    """``uri`` is the gateway's address, without ``/v1``."""

    can_be_asked = True

    def __init__(
        self, uri: str, api_key: str | None = None, *, pool_size: int = 256, verify: bool | str = True
    ) -> None:
        uri = clean_url(uri)
        key = clean_key(api_key)
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._secrets = (key,) if key else ()
        self._client = HttpClient(uri, pool_size=pool_size, verify=verify)
        self._endpoint = Endpoint(self._client, f"{uri}/v1/chat/completions", headers)
        self._models = ModelList(self._client, f"{uri}/v1/models", headers, self._secrets)
        self._cancel_client = HttpClient(uri, pool_size=_CANCEL_POOL, verify=verify)
        self._cancel = Endpoint(self._cancel_client, f"{uri}/v1/cancel", headers)

    def stream(self, request: ModelRequest, call: ModelCall) -> Generator[Delta, None, None]:
        """See :class:`core.provider.provider.Provider`."""
        names = tool_names(request)
        body = request_body(request, names)
        body["metadata"] = {"cancellation_token": call.token}
        reader = ChatReader(call.scope, self._secrets, names.inner)
        return stream_http(self._endpoint, call, body, reader, self._secrets)

    def ask_cancel(self, call: ModelCall, timeout_s: float) -> str:
        """See :class:`core.provider.provider.Provider`.

        The request has a scope of its own, because the call's is stopped; its deadline is a stop of that
        scope, so that neither a slow name look-up nor an answer that trickles can outlast it.
        """
        scope = Scope.root("cancel request")
        wire = AbortableSocket()

        def time_out() -> None:
            scope.cancel(Cause(CauseWord.DEADLINE))

        deadline = alarm_clock.after(timeout_s, time_out)
        try:
            with scope.on_cancel(wire.shut):
                return self._ask(Passenger(wire, scope, scope.checkpoint), call.token, timeout_s)
        except Cancelled as stop:
            if stop.scope is not scope:
                raise
            raise ServerUnreachable(
                f"{place(self._cancel.url)} did not answer the cancel request in time", is_retryable=False
            ) from stop
        finally:
            deadline.call_off()

    def list_models(self, call: ModelCall) -> list[str]:
        """See :class:`core.provider.provider.Provider`."""
        return self._models.read(call)

    def close(self) -> None:
        """Close the pooled connections."""
        self._client.close()
        self._cancel_client.close()

    def _ask(self, passenger: Passenger, token: str, timeout_s: float) -> str:
        body = json.dumps({"cancellation_token": token}).encode()
        # The deadline is the scope's; these only must not strike before it.
        limits = (timeout_s + 1, timeout_s + 1)
        try:
            with self._cancel.post(passenger, body, limits) as response:
                answer = _read(response)
        except TRANSPORT_ERRORS as error:
            raise transport_failure(error, self._cancel.url, has_answered=False, has_said=False) from error
        if not 200 <= response.status_code < 300:
            words = safe_excerpt(body_text(answer), self._secrets)
            raise ServerRejected(
                f"the cancel request was answered {response.status_code}: {words}",
                response.status_code,
                is_retryable=False,
            )
        return _verdict(answer)


def _read(response: requests.Response) -> bytes:
    answer = b""
    while len(answer) <= _MAX_CANCEL_BODY and (data := response.raw.read1(65536, decode_content=True)):
        answer += data
    return answer


def _verdict(answer: bytes) -> str:
    """The word in the answer. The contract names the words and not the member that carries them."""
    text = answer.decode("utf-8", "replace")
    try:
        value: Any = json.loads(text)
    except (ValueError, RecursionError):
        value = text
    members = ("status", "result", "message")
    for word in [value.get(name) for name in members] if isinstance(value, dict) else [value]:
        if isinstance(word, str) and word.strip() in _YES:
            return word.strip()
    raise ProviderNonsense(f"the cancel request was answered: {safe_excerpt(text)}")
