"""A client that adds little to what it measures: one kept connection, the standard library's ``http.client``."""

from __future__ import annotations

import http.client
import json
import time
from typing import Any
from urllib.parse import urlsplit

from tests.support.api_client import make_token


class LeanClient:
    """POSTs for one user, timed."""

    def __init__(self, url: str, sub: str) -> None:
        place = urlsplit(url)
        self._connection = http.client.HTTPConnection(place.hostname or "", place.port)
        self._headers = {"Authorization": f"Bearer {make_token(sub)}", "Content-Type": "application/json"}

    def post(self, path: str, fields: dict[str, Any] | None = None) -> tuple[Any, float]:
        """The JSON of the answer, and milliseconds from the first byte sent to the last one read."""
        sent = json.dumps(fields or {}).encode()
        start = time.perf_counter()
        self._connection.request("POST", path, sent, self._headers)
        answer = self._connection.getresponse()
        body = answer.read()
        took = (time.perf_counter() - start) * 1000
        assert answer.status in (200, 202), body
        return json.loads(body), took
