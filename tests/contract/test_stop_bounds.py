"""The bounds of a stop at a gateway that can be asked: one deadline for all of it, and no trust in a mere yes."""

import threading
import time
from pathlib import Path

from tests.support.five_checks import five_checks
from tests.support.model_server import ModelServer, script
from tests.support.plans import goal, seen_at, start_plan, start_silent
from tests.support.servers import ServerProcess


def test_a_call_that_goes_on_after_a_yes_is_cut_long_before_the_deadline_of_the_stop(
    models: ModelServer, tmp_path: Path, key: str
) -> None:
    with ServerProcess(tmp_path, models.url, CANCEL_TIMEOUT_MS="20000") as server:
        run = server.api().start(script("late", tokens=9000, after_ms=60_000, key=key))
        models.wait_tokens(3, key=key)
        asked_at = time.monotonic()
        answer = run.cancel(wait_ms=30_000)
        assert time.monotonic() - asked_at < 5
        assert answer["parked"] is True
        # Not "abandoned": that is what becomes of a call that is still there 1.8 s after the stop.
        assert [(item["kind"], item["outcome"]) for item in answer["receipt"]] == [
            ("model_call", "cancelled"),
            ("goal", "cancelled"),
        ]
        (call,) = models.wait_open(0, key=key)
        assert call.close_reason == "client_gone"
        five_checks(run, models, key)


def test_a_hundred_calls_that_cannot_be_cancelled_share_one_deadline(
    models: ModelServer, tmp_path: Path, key: str
) -> None:
    with ServerProcess(tmp_path, models.url, CANCEL_TIMEOUT_MS="1000") as server:
        prompt = script("silent", cancel="deaf", key=key)
        run = start_plan(server.api(), *(goal(f"g{number}", prompt) for number in range(100)))
        models.wait_open(100, key=key)
        asked_at = time.monotonic()
        answer = run.cancel(wait_ms=30_000)
        assert time.monotonic() - asked_at < 3
        assert answer["parked"] is True
        outcomes = [item["outcome"] for item in answer["receipt"] if item["kind"] == "model_call"]
        assert outcomes == ["aborted"] * 100
        models.wait_open(0, key=key)
        five_checks(run, models, key)


def test_a_gateway_that_hangs_for_one_plan_does_not_hold_up_the_stop_of_another(
    models: ModelServer, tmp_path: Path, key: str
) -> None:
    with ServerProcess(tmp_path, models.url, CANCEL_TIMEOUT_MS="3000") as server:
        prompt = script("silent", cancel="deaf", key=f"{key}-deaf")
        deaf = start_plan(server.api(f"{key}-a"), *(goal(f"g{number}", prompt) for number in range(64)))
        models.wait_open(64, key=f"{key}-deaf")
        other = start_silent(server.api(f"{key}-b"), models, key)
        with deaf.stream() as reader:
            stop = threading.Thread(target=seen_at(server, deaf).cancel)
            stop.start()
            reader.collect_type("stop_requested")
            models.wait_asked(32, key=f"{key}-deaf")
            answer = other.cancel(wait_ms=30_000)
            assert len(models.calls(key=f"{key}-deaf", only_open=True)) == 64
            assert [item["outcome"] for item in answer["receipt"]] == ["cancelled", "cancelled"]
        stop.join(30)
        five_checks(other, models, key)
        five_checks(deaf, models, f"{key}-deaf")
