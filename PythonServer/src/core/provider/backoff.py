"""Which failed model calls are worth another attempt, and how long to wait before it.

Pure: the wait itself belongs to the caller, who waits on a scope.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from core.errors import ProviderError, ProviderRejected, ProviderUnreachable
from core.provider.failures import ModelListFailed, ServerRejected, ServerUnreachable

#: Statuses that mean "not now" (529 is Anthropic's "overloaded"), not "never".
RETRYABLE_STATUSES = frozenset({408, 429, 500, 502, 503, 504, 529})


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """At most ``max_attempts`` attempts, waits that double, and a cap that no server can lift."""

    max_attempts: int = 5
    base_s: float = 0.5
    cap_s: float = 60.0
    #: Uniform in [0, 1); a test hands in its own.
    draw: Callable[[], float] = field(default=random.random, repr=False)

    def is_retryable(self, error: BaseException) -> bool:
        """Whether the same request may succeed a little later. Never true of a stop."""
        if isinstance(error, ModelListFailed):
            return self.is_retryable(error.inner)
        if isinstance(error, ServerUnreachable | ServerRejected):
            return error.is_retryable
        if isinstance(error, ProviderRejected):
            return error.http_status in RETRYABLE_STATUSES
        return isinstance(error, ProviderUnreachable)

    def is_exhausted(self, attempt: int) -> bool:
        """Whether attempt number ``attempt`` (from 1) was the last one allowed."""
        return attempt >= self.max_attempts

    def delay_s(self, attempt: int, retry_after_s: float | None = None) -> tuple[float, bool]:
        """Seconds to wait after attempt number ``attempt`` (from 1), and whether the cap cut it short.

        A server's Retry-After is taken as it is, without jitter: never less, and never more than the cap.
        """
        if retry_after_s is not None:
            return min(max(retry_after_s, 0.0), self.cap_s), retry_after_s > self.cap_s
        doubled = self.base_s * 2.0 ** min(attempt - 1, 30)
        # Half fixed, half random: calls that failed together do not come back together.
        return min(doubled, self.cap_s) * (0.5 + self.draw() / 2), False


def retry_after_of(error: ProviderError) -> float | None:
    """The wait that the server asked for, in seconds, if it did."""
    if isinstance(error, ModelListFailed):
        error = error.inner
    return error.retry_after_s if isinstance(error, ServerRejected) else None
