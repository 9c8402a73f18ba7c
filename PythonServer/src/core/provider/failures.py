"""Failed model calls, with what the retry loop needs to know about them."""

from core.cancellation import Cause, CauseWord, GoalCancelledException, Scope
from core.errors import ProviderRejected, ProviderUnreachable


class ServerUnreachable(ProviderUnreachable):
    """No connection, or it broke. ``is_retryable`` is False once a part of the answer had come."""

    def __init__(self, detail: str, *, is_retryable: bool) -> None:
        super().__init__(detail)
        self.is_retryable = is_retryable


class ServerRejected(ProviderRejected):
    """The server answered with an error, as a status or as a frame of the stream.

    ``retry_after_s`` is the server's wish in seconds, as large as it likes, or None. ``is_retryable`` is
    False for what a repetition does not mend, and once a part of the answer had come.
    """

    def __init__(
        self, detail: str, http_status: int, *, is_retryable: bool, retry_after_s: float | None = None
    ) -> None:
        super().__init__(detail, http_status)
        self.is_retryable = is_retryable
        self.retry_after_s = retry_after_s


def cancelled_by_gateway(scope: Scope) -> GoalCancelledException:
    """What a 499 means, to be raised. If the scope was stopped by us, our own cause stands."""
    return scope.cancelled_by_peer(Cause(CauseWord.OPERATOR, "the gateway cancelled the request"))
