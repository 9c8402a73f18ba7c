"""``GET /v1/models`` of a gateway without an upstream, in the OpenAI form and, asked so, in Anthropic's."""

from collections.abc import Sequence
from typing import Any

from aiohttp import web

from de2generator.dialect import ANTHROPIC
from de2generator.gateway import bad_request, json_answer


class Models:
    """What a gateway says it has; it answers every name all the same."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = list(names)

    async def show(self, request: web.BaseRequest) -> web.StreamResponse:
        """The list: whole, or a page of ``limit`` behind ``after_id`` for whoever sends ``anthropic-version``."""
        if "anthropic-version" in request.headers:
            return self._page(request)
        models = [{"id": name, "object": "model", "created": 0, "owned_by": "de2generator"} for name in self._names]
        return json_answer({"object": "list", "data": models})

    def _page(self, request: web.BaseRequest) -> web.StreamResponse:
        after, limit = request.query.get("after_id"), request.query.get("limit", "20")
        if not limit.isdecimal() or not 1 <= int(limit) <= 1000:
            return bad_request("limit: must be a number from 1 to 1000", ANTHROPIC)
        if after is not None and after not in self._names:
            return bad_request(f"after_id: there is no model {after!r}", ANTHROPIC)
        begin = 0 if after is None else self._names.index(after) + 1
        names = self._names[begin : begin + int(limit)]
        return json_answer(
            {
                "data": [_model(name) for name in names],
                "first_id": names[0] if names else None,
                "last_id": names[-1] if names else None,
                "has_more": begin + int(limit) < len(self._names),
            }
        )


def _model(name: str) -> dict[str, Any]:
    return {"type": "model", "id": name, "display_name": name, "created_at": "1970-01-01T00:00:00Z"}
