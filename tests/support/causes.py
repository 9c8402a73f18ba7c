"""Causes of stops, for tests that look at which one stands."""

from core.cancellation import Cause, CauseWord

USER = Cause(CauseWord.USER, "enough")
OTHER = Cause(CauseWord.DEADLINE)
