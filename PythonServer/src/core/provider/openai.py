"""Any OpenAI-compatible server. It knows no cancel request: a call is stopped by shutting its socket."""

from collections.abc import Generator

from core.provider.base_url import clean_key, clean_url
from core.provider.http_client import Endpoint, HttpClient
from core.provider.model_call import ModelCall
from core.provider.model_list import ModelList
from core.provider.openai_format import ChatReader, request_body
from core.provider.provider import Delta, ModelRequest
from core.provider.provider_http import stream_http
from core.provider.wire_names import tool_names


class OpenAIProvider:
    """``base_url`` ends in ``/v1``; ``api_key`` may be missing."""

    can_be_asked = False

    def __init__(
        self, base_url: str, api_key: str | None = None, *, pool_size: int = 256, verify: bool | str = True
    ) -> None:
        base_url = clean_url(base_url)
        key = clean_key(api_key)
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._secrets = (key,) if key else ()
        self._client = HttpClient(base_url, pool_size=pool_size, verify=verify)
        self._endpoint = Endpoint(self._client, f"{base_url}/chat/completions", headers)
        self._models = ModelList(self._client, f"{base_url}/models", headers, self._secrets)

    def stream(self, request: ModelRequest, call: ModelCall) -> Generator[Delta, None, None]:
        """See :class:`core.provider.provider.Provider`."""
        names = tool_names(request)
        reader = ChatReader(call.scope, self._secrets, names.inner)
        return stream_http(self._endpoint, call, request_body(request, names), reader, self._secrets)

    def ask_cancel(self, call: ModelCall, timeout_s: float) -> str:
        """Not possible here."""
        raise NotImplementedError("an OpenAI-compatible server cannot be asked to cancel")

    def list_models(self, call: ModelCall) -> list[str]:
        """See :class:`core.provider.provider.Provider`."""
        return self._models.read(call)

    def close(self) -> None:
        """Close the pooled connections."""
        self._client.close()
