"""The Anthropic Messages API. It knows no cancel request: a call is stopped by shutting its socket."""

from collections.abc import Generator
from typing import Final

from core.provider.anthropic_body import messages_body
from core.provider.anthropic_format import MessageReader
from core.provider.base_url import clean_key, clean_url
from core.provider.http_client import Endpoint, HttpClient
from core.provider.model_call import ModelCall
from core.provider.model_list import ModelList
from core.provider.provider import Delta, ModelRequest
from core.provider.provider_http import stream_http
from core.provider.wire_names import tool_names

#: The wire form that this code speaks; the API demands the header.
API_VERSION: Final = "2023-06-01"


class AnthropicProvider:
    """``base_url`` may end in ``/v1`` or not; ``api_key`` may be missing, for a gateway that adds its own."""

    can_be_asked = False

    def __init__(
        self, base_url: str, api_key: str | None = None, *, pool_size: int = 256, verify: bool | str = True
    ) -> None:
        base_url = clean_url(base_url).removesuffix("/v1")
        key = clean_key(api_key)
        headers = {"anthropic-version": API_VERSION, **({"x-api-key": key} if key else {})}
        self._secrets = (key,) if key else ()
        self._client = HttpClient(base_url, pool_size=pool_size, verify=verify)
        self._endpoint = Endpoint(self._client, f"{base_url}/v1/messages", headers)
        self._models = ModelList(self._client, f"{base_url}/v1/models", headers, self._secrets, is_paged=True)

    def stream(self, request: ModelRequest, call: ModelCall) -> Generator[Delta, None, None]:
        """See :class:`core.provider.provider.Provider`."""
        names = tool_names(request)
        reader = MessageReader(names.inner, self._secrets)
        return stream_http(self._endpoint, call, messages_body(request, names), reader, self._secrets)

    def ask_cancel(self, call: ModelCall, timeout_s: float) -> str:
        """Not possible here."""
        raise NotImplementedError("the Anthropic API cannot be asked to cancel")

    def list_models(self, call: ModelCall) -> list[str]:
        """See :class:`core.provider.provider.Provider`."""
        return self._models.read(call)

    def close(self) -> None:
        """Close the pooled connections."""
        self._client.close()
