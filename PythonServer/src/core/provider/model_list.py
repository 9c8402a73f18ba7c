"""The models that a server lists: ``GET …/models``, in the OpenAI and in the Anthropic form, obeying a stop."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlencode

import requests

from core.clock import alarm_clock
from core.errors import ProviderError, ProviderNonsense
from core.network.abortable import AbortableSocket
from core.network.abortable_http import Passenger
from core.provider.backoff import RETRYABLE_STATUSES
from core.provider.failures import ServerRejected, ServerUnreachable, cancelled_by_gateway
from core.provider.http_client import HttpClient
from core.provider.http_failures import (
    TRANSPORT_ERRORS,
    body_text,
    place,
    retry_after_s,
    safe_excerpt,
    transport_failure,
)
from core.provider.model_call import ModelCall

#: Seconds for the whole list, bytes of one page, pages, and characters of a name, at most.
LIST_S: Final = 20.0
_MAX_PAGE, _MAX_PAGES, _MAX_NAME = 4 << 20, 50, 200
_PAGE_SIZE: Final = 1000


class ModelList:
    """Where a server lists its models. ``is_paged``: it hands them out in pages, as the Anthropic API does."""

    def __init__(
        self, client: HttpClient, url: str, headers: Mapping[str, str], secrets: Sequence[str], *, is_paged: bool = False
    ) -> None:  # fmt: skip
        self._client = client
        self._url = url
        self._headers = {"Accept": "application/json", "Accept-Encoding": "identity", **headers}
        self._secrets = secrets
        self._is_paged = is_paged

    def read(self, call: ModelCall) -> list[str]:
        """The names, each once, in the server's order. Blocks :data:`LIST_S` at most; stopped through ``call``.

        Raises ``ServerUnreachable``, ``ServerRejected``, ``ProviderNonsense``, ``Cancelled`` if the call's scope was
        stopped, ``GoalCancelledException`` on a 499.
        """
        if not isinstance(call.wire, AbortableSocket):
            raise TypeError("a call over HTTP needs an AbortableSocket as its wire")
        wire, is_late = call.wire, False

        def time_out() -> None:
            nonlocal is_late
            is_late = True
            wire.shut()

        with call.scope.on_cancel(call.abort):
            limit = alarm_clock.after(LIST_S, time_out)
            try:
                return self._pages(Passenger(wire, call.scope, call.mark_sent))
            except ProviderError as error:
                call.scope.checkpoint(error)
                if not is_late:
                    raise
                words = f"{place(self._url)} did not list its models in {LIST_S:g} s"
                raise ServerUnreachable(words, is_retryable=False) from error
            finally:
                limit.call_off()

    def _pages(self, passenger: Passenger) -> list[str]:
        names: dict[str, None] = {}
        after: str | None = None
        for _ in range(_MAX_PAGES):
            page = self._page(passenger, after)
            names.update(dict.fromkeys(self._names(page)))
            last = page.get("last_id") if self._is_paged and isinstance(page, dict) and page.get("has_more") else None
            if not isinstance(last, str) or last == after:
                break
            after = last
        return list(names)

    def _page(self, passenger: Passenger, after: str | None) -> Any:
        query = {"limit": _PAGE_SIZE, **({"after_id": after} if after else {})} if self._is_paged else {}
        url = f"{self._url}?{urlencode(query)}" if query else self._url
        request = requests.Request("GET", url, headers=self._headers).prepare()
        has_answered = False
        try:
            with self._client.exchange(passenger, request) as response:
                has_answered = True
                body = _read(response)
        except TRANSPORT_ERRORS as error:
            raise transport_failure(error, self._url, has_answered=has_answered, has_said=False) from error
        self._check_status(response, body, passenger)
        try:
            return json.loads(body)
        except (ValueError, RecursionError):
            raise ProviderNonsense(f"{place(self._url)} sent a list of models that is not JSON") from None

    def _check_status(self, response: requests.Response, body: bytes, passenger: Passenger) -> None:
        status = response.status_code
        if status == 499:
            raise cancelled_by_gateway(passenger.scope)
        if not 200 <= status < 300:
            words = safe_excerpt(body_text(body), self._secrets)
            raise ServerRejected(
                f"{place(self._url)} answered {status} to the question for its models: {words}",
                status,
                is_retryable=status in RETRYABLE_STATUSES,
                retry_after_s=retry_after_s(response.headers.get("Retry-After")),
            )

    def _names(self, page: Any) -> list[str]:
        entries = page.get("data") if isinstance(page, dict) else page
        if not isinstance(entries, list):
            raise ProviderNonsense(f"{place(self._url)} sent a list of models that is none")
        ids = (entry.get("id") for entry in entries if isinstance(entry, dict))
        return [name for name in ids if isinstance(name, str) and 0 < len(name) <= _MAX_NAME and name.isprintable()]


def _read(response: requests.Response) -> bytes:
    body = b""
    while data := response.raw.read1(65536, decode_content=True):
        body += data
        if len(body) > _MAX_PAGE:
            raise ProviderNonsense(f"a list of models is longer than {_MAX_PAGE >> 20} MiB")
    return body
