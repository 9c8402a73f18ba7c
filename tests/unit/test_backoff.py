"""Which failures are worth a retry, and how long the wait is."""

import pytest

from core.cancellation import Level, Scope
from core.errors import ProviderError, ProviderNonsense, ProviderRejected, ProviderUnreachable
from core.provider.backoff import RetryPolicy, retry_after_of
from core.provider.failures import ServerRejected, ServerUnreachable, cancelled_by_gateway


def test_waits_double_with_jitter_up_to_the_cap() -> None:
    low, high = RetryPolicy(draw=lambda: 0.0), RetryPolicy(draw=lambda: 1.0)

    assert [high.delay_s(attempt)[0] for attempt in range(1, 5)] == [0.5, 1, 2, 4]
    assert [low.delay_s(attempt)[0] for attempt in range(1, 5)] == [0.25, 0.5, 1, 2]
    assert high.delay_s(1000) == (60.0, False)


def test_a_retry_after_is_waited_for_as_the_server_says() -> None:
    assert RetryPolicy().delay_s(1, 7.5) == (7.5, False)
    assert RetryPolicy().delay_s(4, 0.0) == (0.0, False)
    assert RetryPolicy().delay_s(1, 60.0) == (60.0, False)
    assert RetryPolicy().delay_s(1, -3.0) == (0.0, False)


def test_a_retry_after_beyond_the_cap_waits_the_cap_and_says_so() -> None:
    assert RetryPolicy().delay_s(1, 277_403.0) == (60.0, True)
    assert RetryPolicy().delay_s(1, 1e300) == (60.0, True)


def test_the_fifth_attempt_is_the_last() -> None:
    assert [RetryPolicy().is_exhausted(attempt) for attempt in (1, 4, 5, 6)] == [False, False, True, True]


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_a_server_that_is_busy_or_broken_is_asked_again(status: int) -> None:
    assert RetryPolicy().is_retryable(ProviderRejected("busy", status))


@pytest.mark.parametrize("status", [302, 400, 401, 403, 404, 422, 501])
def test_a_request_that_is_wrong_is_not_repeated(status: int) -> None:
    assert not RetryPolicy().is_retryable(ProviderRejected("wrong", status))


def test_a_failure_that_says_so_itself_is_believed() -> None:
    policy = RetryPolicy()

    assert policy.is_retryable(ProviderUnreachable("down"))
    assert policy.is_retryable(ServerUnreachable("down", is_retryable=True))
    assert not policy.is_retryable(ServerUnreachable("broke off", is_retryable=False))
    assert not policy.is_retryable(ServerRejected("busy, mid-stream", 503, is_retryable=False))


def test_nonsense_other_errors_and_stops_are_not_retried() -> None:
    policy = RetryPolicy()
    stop = cancelled_by_gateway(Scope.root().open(Level.CALL, "c"))

    assert not policy.is_retryable(ProviderNonsense("html"))
    assert not policy.is_retryable(ProviderError("?"))
    assert not policy.is_retryable(ValueError())
    assert not policy.is_retryable(stop)


def test_the_wait_that_the_server_asked_for_is_found_on_the_error() -> None:
    assert retry_after_of(ServerRejected("busy", 429, is_retryable=True, retry_after_s=3.0)) == 3.0
    assert retry_after_of(ServerRejected("busy", 429, is_retryable=True)) is None
    assert retry_after_of(ProviderUnreachable("down")) is None
