"""Any OpenAI-compatible server. It knows no cancel request: a call is stopped by shutting its socket."""

from collections.abc import Iterator

from core.provider.base_url import clean_key, clean_url
from core.provider.http_client import HttpClient
from core.provider.model_call import ModelCall
from core.provider.openai_format import ChatReader, request_body
from core.provider.provider import Delta, ModelRequest
from core.provider.provider_http import JsonPost, stream_http


class OpenAIProvider:
    """``base_url`` ends in ``/v1``; ``api_key`` may be missing."""

    can_be_asked = False

    def __init__(
        self, base_url: str, api_key: str | None = None, *, pool_size: int = 256, verify: bool | str = True
    ) -> None:
        self._url = f"{clean_url(base_url)}/chat/completions"
        key = clean_key(api_key)
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._secrets = (key,) if key else ()
        self._client = HttpClient(self._url, pool_size=pool_size, verify=verify)

    def stream(self, request: ModelRequest, call: ModelCall) -> Iterator[Delta]:
        """See :class:`core.provider.provider.Provider`."""
        reader = ChatReader(call.scope, self._secrets)
        post = JsonPost(self._url, self._headers, request_body(request), self._secrets)
        return stream_http(self._client, call, post, reader)

    def ask_cancel(self, call: ModelCall, timeout_s: float) -> str:
        """Not possible here."""
        raise NotImplementedError("an OpenAI-compatible server cannot be asked to cancel")

    def close(self) -> None:
        """Close the pooled connections."""
        self._client.close()
