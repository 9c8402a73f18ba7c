"""The load: users who start, talk, stop and read at random, until the server is gone, and note what they were told."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from contextlib import closing
from typing import Any

import requests
from urllib3.exceptions import HTTPError

from tests.chaos.frames import read_frames
from tests.chaos.witness import RUN_ENDS, Kill, Ledger, Message, Start, Witness
from tests.support.api_client import Api, make_token
from tests.support.model_server import script

#: Runs that call a tool take part. The server then needs TOOLS_ALLOWED=shell; see ``kills.ENVIRONMENT``.
WITH_TOOLS = True
#: Half of the batch runs are to be taken up again by the next server.
WITH_RESUME = True

#: What the tool runs: it outlives every test, unless whoever started it sees to its end.
TOOL_COMMAND = "sleep 86399.5 & sleep 0.3; echo done"

#: Live runs that a user keeps from one server to the next.
MAX_LIVE = 4

LOST = (requests.ConnectionError, requests.exceptions.ChunkedEncodingError, HTTPError)


class User:
    """One user, with runs that outlive servers. ``runs`` are live, ``retired`` ones are only looked at any more."""

    def __init__(self, name: str, seed: str, ledger: Ledger) -> None:
        self.name = name
        self.runs: list[Witness] = []
        self.retired: list[Witness] = []
        #: Starts whose answer was lost.
        self.starts_in_doubt: list[Start] = []
        self._random = random.Random(f"{seed}/{name}")
        self._reading = random.Random(f"{seed}/{name}/reader")
        self._ledger = ledger
        self._number = 0
        self._token = make_token(name)
        self._url = ""
        self.api = Api("", self._token)

    # -- one server ------------------------------------------------------------------------------

    def meet(self, url: str) -> Api:
        """A new server: connections of its own to it."""
        self.api.close()
        self._url = url
        self.api = Api(url, self._token)
        return self.api

    def retire_runs(self) -> None:
        """Do nothing more with those that are over, and with the oldest."""
        kept = [run for run in self.runs if not run.is_over][-MAX_LIVE:]
        self.retired += [run for run in self.runs if run not in kept]
        self.runs = kept

    def act(self, kill: Kill) -> None:
        """One thing after the other, until the server is gone."""
        self._until_lost(kill, self._do_something)

    def read(self, kill: Kill) -> None:
        """Follow one run after the other, until the server is gone."""
        api = Api(self._url, self._token)
        with closing(api):
            self._until_lost(kill, lambda: self._follow(api, kill))

    def _until_lost(self, kill: Kill, do: Callable[[], None]) -> None:
        try:
            while not kill.is_done.is_set():
                do()
        except LOST as error:
            if not kill.is_due.is_set():
                self._ledger.accuse(f"{self.name}: a connection was lost before the kill: {error!r}")
        except Exception as error:
            self._ledger.accuse(f"{self.name}: {error!r}")

    # -- what a user does -----------------------------------------------------------------------

    def _do_something(self) -> None:
        kinds = (self._start, self._say, self._stop, self._stop_plan, self._terminate)
        self._random.choices(kinds, (5, 6, 4, 1, 1))[0]()

    def _start(self) -> None:
        is_batch = self._random.random() < 0.4
        over = [run for run in self.runs if run.is_over]
        again = over[-1].session_id if over and self._random.random() < 0.5 else self._next("s")
        body: dict[str, Any] = {
            "input": "work on this", "planning": "none", "session_id": again, "interactive": not is_batch,
            "metadata": {"start": (key := self._next("start"))},
        }  # fmt: skip
        if is_batch and WITH_RESUME and self._random.random() < 0.5:
            body["on_server_lost"] = "resume"
        if self._random.random() < 0.4:
            body["plan"] = {"goals": self._plan()}
        else:
            body["input"] = self._opening("on_server_lost" not in body)
        start = Start(key, body)
        self.starts_in_doubt.append(start)
        answer = send_start(self.api, start)
        self.starts_in_doubt.remove(start)
        if self._fits(answer, 201, {409: ("session_is_busy",)}):
            self._ledger.count("runs")
            self.runs.append(witness_of(answer.json(), self.name, start))

    def _opening(self, may_hang: bool) -> str:
        if WITH_TOOLS and self._random.random() < 0.4:
            return script("toolcall", name="shell", arguments={"command": TOOL_COMMAND}, tokens=3, key=self._next("k"))
        if may_hang and self._random.random() < 0.2:
            # A stop has to do for a while with a gateway that is deaf to it.
            return script("silent", cancel=self._random.choice(("obey", "deaf")), key=self._next("k"))
        return self._text(self._random.choice((5, 40, 400)))

    def _text(self, tokens: int) -> str:
        pace = self._random.choice((0, 1, 10))
        return script("trickle", tokens=self._random.randint(1, tokens), interval_ms=pace, key=self._next("k"))

    def _plan(self) -> list[dict[str, Any]]:
        goals: list[dict[str, Any]] = []
        for number in range(self._random.randint(2, 6)):
            after = [each["id"] for each in goals if self._random.random() < 0.3]
            goals.append({"id": f"g{number}", "prompt": self._text(30), "depends_on": after})
        return goals

    def _say(self) -> None:
        run = self._any_run(lambda run: not run.is_batch)
        if run is None:
            return
        repeats = bool(run.messages) and self._random.random() < 0.2
        # A message may be delivered after the kill, by the next server, so it is one that comes to an end by itself.
        message = self._random.choice(run.messages) if repeats else Message(self._text(20), self._next("m"))
        if not repeats:
            run.messages.append(message)
        answer = send_message(self.api, run, message)
        if not self._fits(answer, 202, {409: ("run_is_over",), 429: ("queue_full",)}):
            run.is_over = run.is_over or answer.status_code == 409
            if not repeats:
                run.messages.remove(message)
            return
        message_id = answer.json()["message_id"]
        if repeats and message.message_id is not None and message_id != message.message_id:
            self._ledger.accuse(f"{run.run_id}: {message} became {message_id} when it was repeated")
        if message.message_id is None:
            self._ledger.count("messages")
        message.message_id = message_id

    def _stop(self) -> None:
        run = self._any_run(lambda run: not run.is_batch)
        if run is not None:
            keep = self._random.choice(("keep", "keep", "return", "drop"))
            body = {"wait_ms": self._random.choice((0, 0, 300)), "inbox": keep}
            self._note_stop(run, self.api.request("POST", f"{run.path}/cancel", json=body))

    def _terminate(self) -> None:
        run = self._any_run(lambda _: True)
        if run is not None:
            answer = self.api.request("POST", f"{run.path}/terminate", json={})
            # A batch run may have come to its end an instant before.
            if self._note_stop(run, answer) and (answer.json()["stopped"] or answer.json()["state"] == "cancelled"):
                self._ledger.count("terminates")
                run.is_terminated = True
            run.is_over = True

    def _stop_plan(self) -> None:
        answer = self.api.request("POST", "/stopplan", json={})
        if self._fits(answer, 200, {}) and answer.json()["stopped"]:
            run = next((run for run in self.runs if run.run_id == answer.json()["run_id"]), None)
            if run is not None:
                self._note_stop(run, answer)

    def end(self, run: Witness) -> None:
        """Stop what the run is doing."""
        verb = "terminate" if run.is_batch else "cancel"
        self._note_stop(run, self.api.request("POST", f"{run.path}/{verb}", json={"wait_ms": 3000}))

    def _note_stop(self, run: Witness, answer: requests.Response) -> bool:
        if not self._fits(answer, 200, {409: ("run_is_over",)}):
            run.is_over = True
            return False
        if answer.json()["stopped"]:
            self._ledger.count("stops")
            run.stopped_turns.add(answer.json()["turn_id"])
        return True

    def _follow(self, api: Api, kill: Kill) -> None:
        if not self.runs:
            kill.is_done.wait(0.01)  # nothing to read yet
            return
        run = self._reading.choice(self.runs[-3:])
        after = self._reading.choice((0, max(run.seen, default=0), max(run.seen, default=1) // 2))
        patience = self._reading.randint(1, 200)
        with closing(read_frames(api, run.path, after)) as frames:
            for seq, data in frames:
                fault = run.see(seq, data)
                if fault is not None:
                    self._ledger.accuse(fault)
                patience -= 1
                if patience < 0 or json.loads(data)["type"] in ("awaiting_input", *RUN_ENDS):
                    return

    # -- small things ---------------------------------------------------------------------------

    def _any_run(self, fits: Callable[[Witness], bool]) -> Witness | None:
        found = [run for run in self.runs if fits(run) and not run.is_over]
        return self._random.choice(found) if found else None

    def _next(self, kind: str) -> str:
        self._number += 1
        return f"{self.name}-{kind}{self._number}"

    def _fits(self, answer: requests.Response, status: int, refusals: dict[int, tuple[str, ...]]) -> bool:
        """Whether it was taken. A refusal that is not among the expected ones is a violation."""
        if answer.status_code == status:
            return True
        code = answer.json().get("code")
        if code not in refusals.get(answer.status_code, ()):
            self._ledger.accuse(f"{self.name}: {answer.request.method} {answer.request.path_url}: {answer.text}")
        return False


def send_start(api: Api, start: Start) -> requests.Response:
    """``POST /v1/runs`` with its Idempotency-Key."""
    return api.request("POST", "/v1/runs", json=start.body, headers={"Idempotency-Key": start.key})


def send_message(api: Api, run: Witness, message: Message) -> requests.Response:
    """``POST …/input`` with its client_message_id."""
    body = {"text": message.text, "client_message_id": message.client_message_id}
    return api.request("POST", f"{run.path}/input", json=body)


def witness_of(created: dict[str, Any], user: str, start: Start) -> Witness:
    """From the answer to a start."""
    return Witness(created["run_id"], created["session_id"], user, start, created["turn_id"])
