"""Hundreds of turns, each stopped at a random instant: every one ends once, says the truth, and leaves nothing."""

import contextlib
import os
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from core.engine.call_pool import CallPool
from core.session.turn import Turn
from tests.support.api_client import Api, Run, in_threads
from tests.support.five_checks import TURN_ENDS, _check_ends
from tests.support.model_server import ModelServer, script
from tests.support.plans import goal
from tests.support.race_kit import check_nothing_left
from tests.support.servers import REMOTE_TOKEN, LocalServer, wait_until

USERS = 10
#: The stop comes so many seconds after the message, at most: at first, and however slow the machine is.
LATEST_S, MAX_LATEST_S = 0.15, 2.0
SEED = 20_260
#: As the kernel writes it.
LISTENING = "0A"
RUN_ENDS = ("run_completed", "run_cancelled", "run_failed")


# -- what is stopped -------------------------------------------------------------------------


def _short(rng: random.Random, key: str) -> str:
    """A call of some milliseconds, or, one time in three, one that only a stop ends soon."""
    return rng.choice(
        [
            script("strict", key=key),
            script("trickle", tokens=1, interval_ms=0, key=key),
            script("nonstream", delay_ms=0, tokens=1, key=key),
            script("trickle", tokens=rng.randint(1, 6), interval_ms=rng.randint(0, 10), key=key),
            script("nonstream", delay_ms=rng.randint(0, 30), tokens=3, key=key),
            script("prefill", delay_ms=rng.randint(0, 30), tokens=2, interval_ms=5, key=key),
            script("trickle", tokens=200, interval_ms=5, cancel="refuse", key=key),
            script("busy", times=1, retry_after_s=1, tokens=2, interval_ms=5, key=f"{key}-{rng.random()}"),
            script("silent", key=key),
        ]
    )


def _message(rng: random.Random, key: str) -> str:
    """A message that makes one goal, or a plan of several, side by side or one after the other."""
    if rng.random() < 0.5:
        return _short(rng, key)
    chain = {"chain": 1} if rng.random() < 0.5 else {}
    return script("plan", many=rng.randint(2, 6), prompt=_short(rng, key), key=key, **chain)


def _plan(rng: random.Random, key: str) -> dict[str, Any]:
    """A wide plan, or a deep one whose leaves wait for each other."""
    if rng.random() < 0.5:
        return {"goals": [goal(f"g{number}", _short(rng, key)) for number in range(rng.randint(2, 10))]}
    made = [goal("leaf1", _short(rng, key)), goal("leaf2", _short(rng, key), "leaf1")]
    for level in range(rng.randint(2, 12)):
        made = [goal(f"level{level}", goals=made), goal(f"beside{level}", _short(rng, key))]
    return {"goals": made}


# -- who stops it ------------------------------------------------------------------------------


class _User:
    """One user with one session, in which one turn follows the other."""

    def __init__(self, local: LocalServer, number: int, key: str) -> None:
        self._local = local
        self._rng = random.Random(f"{SEED}-{number}")
        self._key = key
        self.session_id = f"random-{number}"
        self._sub = f"user{number}"
        self.api = local.api(self._sub)
        self.run: Run | None = None
        self._latest_s = LATEST_S
        self._seen = 0
        self.runs: list[Run] = []
        #: Turn -> its terminal event as it was seen first.
        self.ends: dict[str, dict[str, Any]] = {}

    def take_turn(self) -> None:
        """Send a message, stop it, and see that turn and answer agree."""
        turn_id = self._begin()
        time.sleep(self._rng.uniform(0, self._latest_s))  # the random instant is what is tried here
        how = self._rng.choice([self._cancel, self._cancel_twice, self._stop_plan, self._stop_session, self._terminate])
        was_stopped = how(turn_id)
        assert self.run is not None
        events = self.run.events(_ends_run if how == self._terminate else None, after=self._seen)
        self._seen = events[-1]["seq"]
        (end,) = [event for event in events if event.get("turn_id") == turn_id and event["type"] in TURN_ENDS]
        assert was_stopped == (end["type"] == "turn_cancelled"), f"said {was_stopped}: {end}"
        # The next one later if this stop won, else earlier: so it stays a race on any machine.
        self._latest_s = min(self._latest_s * (1.25 if was_stopped else 0.8), MAX_LATEST_S)
        self.ends[turn_id] = end
        if how == self._terminate:
            self.run = None

    def _begin(self) -> str:
        if self.run is not None:
            return str(self.run.say(_message(self._rng, self._key))["turn_id"])
        plan = {"plan": _plan(self._rng, self._key)} if self._rng.random() < 0.7 else {}
        self.run = self.api.start(_message(self._rng, self._key), "auto", session_id=self.session_id, **plan)
        self.runs.append(self.run)
        self._seen = 0
        return self.run.first_turn

    def _cancel(self, turn_id: str) -> bool:
        assert self.run is not None
        choices: list[dict[str, Any]] = [{}, {"if_turn": turn_id}, {"wait_ms": 30_000}]
        fields = self._rng.choice(choices)
        answer = self.run.cancel(**fields)
        assert answer["turn_id"] == turn_id
        assert answer["parked"] is True or fields.get("wait_ms") is None
        return bool(answer["stopped"])

    def _cancel_twice(self, turn_id: str) -> bool:
        assert self.run is not None
        path = f"{self.run.path}/cancel"
        users = [Api(self._local.url, self.api.token) for _ in range(2)]
        answers = in_threads(2, lambda number: users[number].post(path))
        for user in users:
            user.close()
        return any(answer["stopped"] for answer in answers)

    def _stop_plan(self, turn_id: str) -> bool:
        user = self._local.api(self._sub, session_id=self.session_id)
        answer = user.post("/stopplan")
        user.close()
        assert answer.get("turn_id") in (turn_id, None)
        return bool(answer["stopped"])

    def _stop_session(self, turn_id: str) -> bool:
        remote = Api(self._local.url, REMOTE_TOKEN)
        answer = remote.post(f"/sessions/session/{self.session_id}/stop")
        remote.close()
        return bool(answer["stopped"])

    def _terminate(self, turn_id: str) -> bool:
        assert self.run is not None
        return bool(self.run.terminate()["stopped"])

    def check_next_message(self) -> None:
        """The session is sound: the model server accepts what is sent, and answers."""
        run = self.run or self.api.start(script("strict", key=self._key), session_id=self.session_id)
        if run is self.run:
            run.say(script("strict", key=self._key))
        assert "turn_completed" in [event["type"] for event in run.events(after=self._seen if run is self.run else 0)]
        assert run.transcript()[-1]["content"] == "All messages are in order."
        run.terminate()  # which ends its streams, also those whose reader has hung up

    def check_history(self) -> None:
        """Everything that was seen at the time is still so, and nothing was added to it."""
        for run in self.runs:
            last = run.view()["last_seq"]
            events = run.events(lambda event: event["seq"] == last)  # noqa: B023  # it is read before the next run
            _check_ends(events)
            for event in events:
                if event["type"] in TURN_ENDS and event["turn_id"] in self.ends:
                    assert event == self.ends[event["turn_id"]]


def _ends_run(event: dict[str, Any]) -> bool:
    return event["type"] in RUN_ENDS


# -- what may be left ------------------------------------------------------------------------------


def _connections(url: str) -> int:
    """Connections of this process to that server, or of that server in this process."""
    port = urlsplit(url).port
    mine = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the descriptor of the listing itself
            mine.add(os.readlink(f"/proc/self/fd/{name}"))
    found = 0
    for line in Path("/proc/self/net/tcp").read_text().splitlines()[1:]:
        _, here, there, state, *_, inode = line.split()[:10]
        ports = {int(address.rpartition(":")[2], 16) for address in (here, there)}
        found += port in ports and state != LISTENING and f"socket:[{inode}]" in mine
    return found


def _pooled_connections(server: LocalServer) -> int:
    """Connections to the gateway that wait in a pool for the next request."""
    provider: Any = server.main.agents["default"]._provider
    found = 0
    clients = [getattr(provider, name) for name in ("_client", "_cancel_client") if hasattr(provider, name)]
    for client in clients:
        pools = client._adapter.poolmanager.pools
        for key in pools.keys():  # noqa: SIM118  # urllib3's container is no iterable mapping
            waiting = pools[key].pool.queue
            found += sum(connection is not None and connection.sock is not None for connection in waiting)
    return found


def _pool_threads(pool: CallPool) -> int:
    """Threads that run this pool's calls, or wait for one."""
    targets = [getattr(thread, "_target", None) for thread in threading.enumerate()]
    return sum(getattr(target, "__self__", None) is pool for target in targets)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("provider", "turns_a_user"),
    [
        ("de2generator", 12), ("openai", 8),
        pytest.param("de2generator", 50, marks=pytest.mark.slow), pytest.param("openai", 20, marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_hundreds_of_turns_stopped_at_a_random_instant_each_end_once_and_leave_nothing(
    key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, provider: str, turns_a_user: int
) -> None:
    turns: list[Turn] = []
    make_turn: Callable[..., Turn] = Turn

    def noting(*arguments: Any) -> Turn:
        turns.append(make_turn(*arguments))
        return turns[-1]

    monkeypatch.setattr("core.engine.embedded.Turn", noting)
    path = "" if provider == "de2generator" else "/v1"
    # A gateway of its own, so that each connection to it is this server's.
    with ModelServer(strict=True) as models, LocalServer(tmp_path, models.url + path, llm_provider=provider) as local:
        users = [_User(local, number, key) for number in range(USERS)]
        _all_at_once(users, turns_a_user)
        for user in users:
            assert local.api(user._sub).get("/v1/runs?state=running")["runs"] == []
            user.check_next_message()
            user.check_history()
            user.api.close()
        ends = {turn_id: end["type"] for user in users for turn_id, end in user.ends.items()}
        assert len(ends) == USERS * turns_a_user
        assert {"turn_cancelled", "turn_completed"} <= set(ends.values())  # else nothing was tried here
        models.wait_open(0)
        check_nothing_left(local)
        assert [turn.start.turn_id for turn in turns if len(turn.calls)] == []
        wait_until(lambda: _connections(models.url) == _pooled_connections(local), "only pooled connections are left")
        wait_until(lambda: _connections(local.url) == 0, "the end of the requests")
        pool = local.main.engine.pool
        wait_until(lambda: _pool_threads(pool) == len(pool._idle), "only idle threads are left")


def _all_at_once(users: list[_User], turns_a_user: int) -> None:
    failures: list[BaseException] = []

    def take_turns(user: _User) -> None:
        try:
            for _ in range(turns_a_user):
                user.take_turn()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=take_turns, args=(user,)) for user in users]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(240)
        assert not thread.is_alive(), "a user hangs"
    if failures:
        raise failures[0]
