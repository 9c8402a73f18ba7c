"""One request of the HTTP tool with its redirects: sent, followed, read; and what has come of it at any moment."""

from __future__ import annotations

from typing import Final

import requests
from urllib3 import HTTPResponse

from core.cancellation import Cause, CauseWord
from core.gates import pause_at
from core.network.abortable import AbortableSocket
from core.network.abortable_http import AbortableAdapter, Passenger, carrying
from core.network.resolver import Resolver
from core.tool.http.body import Body
from core.tool.http.messages import host_of, next_request
from core.tool.http.policy import AddressPolicy
from core.tool.tool import ToolFailed, ToolRun

MAX_REDIRECTS: Final = 5
#: Seconds for one address to accept a connection, so that the next may be tried.
_CONNECT_LIMIT_S: Final = 10.0
_READ: Final = 64 * 1024
#: Not the one of the model calls: names that agents make up, and that nobody answers for, must not hold those up.
_names: Final = Resolver()


class Exchange:
    """For one thread; :meth:`shut` is for any.

    Its connections are its own: none is taken from, or left to, another call, so each was checked by the policy, and
    no server can mistake one user for another.
    """

    def __init__(self, run: ToolRun, policy: AddressPolicy, cap: int, verify: bool | str) -> None:
        self._run = run
        self._policy = policy
        self._cap = cap
        self._verify = verify
        self._wire = AbortableSocket()
        #: A request has left, at least in part.
        self.is_sent = False
        #: The answer is there to its last byte.
        self.is_complete = False
        self.request: requests.PreparedRequest | None = None
        #: The answer that is no redirect, once its headers are there.
        self.response: requests.Response | None = None
        self.body: Body | None = None

    def shut(self) -> None:
        """Hang up, in any phase, for ever."""
        self._wire.shut()

    @property
    def host(self) -> str:
        """Who is being asked now."""
        return host_of(self.request) if self.request is not None else "?"

    def perform(self, request: requests.PreparedRequest, limit_s: float) -> None:
        """All of it. Raises ``ToolFailed``, what ``requests`` and urllib3 raise, and ``Cancelled``."""
        adapter = AbortableAdapter(pool_maxsize=1, max_retries=0)
        try:
            self._read(self._follow(adapter, request, limit_s))
        finally:
            if self.response is not None:
                self.response.close()
            if self.body is not None:
                self.body.finish()
            adapter.close_pools()
            self._wire.detach()

    def _follow(
        self, adapter: AbortableAdapter, request: requests.PreparedRequest, limit_s: float
    ) -> requests.Response:
        passenger = Passenger(self._wire, self._run.scope, self._mark_sent, self._policy.may_reach, _names)
        # The scope's alarm comes first. Nothing is taken from the environment: no proxy, no .netrc, no cookies.
        limits_s = (_CONNECT_LIMIT_S, limit_s + _CONNECT_LIMIT_S)
        for _ in range(MAX_REDIRECTS + 1):
            self.request = request
            with carrying(passenger):
                response = adapter.send(request, stream=True, timeout=limits_s, verify=self._verify, proxies={})
            try:
                self._run.scope.checkpoint()  # a shut socket looks like the end of the headers
                following = next_request(request, response)
            except BaseException:
                response.close()
                raise
            if following is None:
                return response
            response.close()
            request = following
        raise ToolFailed(f"the server redirects more than {MAX_REDIRECTS} times: ask for the last address itself")

    def _mark_sent(self) -> None:
        """The last line before bytes leave."""
        pause_at("http_request.before_sent")
        self._run.scope.checkpoint()
        self.is_sent = True

    def _read(self, response: requests.Response) -> None:
        self.response = response
        self.body = body = Body(self._cap, self._run.emit, _content_type(response))
        # read1: what has arrived, at once, and never more than that after decoding.
        while data := response.raw.read1(_READ, decode_content=True):
            if not body.take(data):
                self._run.limit(Cause(CauseWord.OUTPUT_LIMIT, f"the answer was longer than {self._cap} bytes"))
                return
            pause_at("http_request.after_read")
        # A body without a length ends when the connection does: then a shut socket looks like the end.
        self.is_complete = _is_framed(response) or not self._run.scope.is_stopped


def _is_framed(response: requests.Response) -> bool:
    has_no_body = response.status_code in (204, 304) or response.request.method == "HEAD"
    return has_no_body or "Content-Length" in response.headers or bool(getattr(response.raw, "chunked", False))


def _content_type(response: requests.Response) -> str:
    """Empty if the body stays compressed in a way that is not known here: then the type is not that of the bytes."""
    encodings = response.headers.get("Content-Encoding", "").lower().split(",")
    known = {"", "identity", *HTTPResponse.CONTENT_DECODERS}
    is_decoded = all(encoding.strip() in known for encoding in encodings)
    return response.headers.get("Content-Type", "") if is_decoded else ""
