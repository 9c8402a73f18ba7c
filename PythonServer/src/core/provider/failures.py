"""Failed model calls, with what the retry loop needs to know about them."""

from core.cancellation import Cause, CauseWord, GoalCancelledException, Scope
from core.errors import ProviderError, ProviderRejected, ProviderUnreachable


class ServerUnreachable(ProviderUnreachable):
    """No connection, or it broke. ``is_retryable`` is False once a part of the answer had come.

    ``is_connected`` is False if not even a connection came about: then it is the address, not the model.
    """

    def __init__(self, detail: str, *, is_retryable: bool, is_connected: bool = True) -> None:
        super().__init__(detail)
        self.is_retryable = is_retryable
        self.is_connected = is_connected


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


class NoSuchModel(ProviderError):
    """No model that the server lists fits the pattern."""

    title = "No model fits the pattern"


class ModelListFailed(ProviderError):
    """There is no list in which a pattern could find its model; ``inner`` says why, and what may be done about it."""

    def __init__(self, pattern: str, inner: ProviderError) -> None:
        super().__init__(f"no model for the pattern {pattern!r}: {inner.detail}")
        self.inner = inner
        self.code = inner.code


def cancelled_by_gateway(scope: Scope) -> GoalCancelledException:
    """What a 499 means, to be raised. If the scope was stopped by us, our own cause stands."""
    return scope.cancelled_by_peer(Cause(CauseWord.OPERATOR, "the gateway cancelled the request"))
