"""Kill -9 under load, again and again; after each, a new server, and a look at everything that was acknowledged."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable
from pathlib import Path

from tests.chaos import load
from tests.chaos.checks import Found, check, look
from tests.chaos.load import User, send_message, send_start, witness_of
from tests.chaos.witness import Kill, Ledger, Message, Start, Witness
from tests.support.api_client import PATIENCE_S, Api, Run
from tests.support.model_server import ModelServer, script
from tests.support.servers import ServerProcess, wait_until

USERS = 6
#: Runs whose next message is tried after each kill.
SAMPLE = 3
#: That a server was lost is what every start has to say here.
ENVIRONMENT = {"LOG_LEVEL": "error"} | ({"TOOLS_ALLOWED": "shell"} if load.WITH_TOOLS else {})


def kill_again_and_again(kills: int, seed: str, folder: Path, say: Callable[[str], None]) -> Ledger:
    """The whole of it; what was counted, and found wrong."""
    chaos = random.Random(seed)
    ledger = Ledger()
    users = [User(f"user{number}", seed, ledger) for number in range(USERS)]
    with ModelServer(strict=True) as models, ServerProcess(folder, models.url, **ENVIRONMENT) as server:
        for number in range(1, kills + 1):
            _run_until_killed(server, users, chaos.uniform(0.05, 1.0))
            ledger.count("kills")
            if chaos.random() < 0.15:
                _kill_while_starting(server, chaos.uniform(0.1, 0.9))
                ledger.count("kills while starting")
            server.start()
            _look_after(server, users, ledger, chaos)
            models.clear()
            for violation in ledger.fresh():
                say(f"VIOLATION after {number} kills: {violation}")
            if number % 20 == 0 or number == kills:
                say(f"{number} kills, {len(ledger.violations)} violations")
        _look_at_all(users, ledger)
    for violation in ledger.fresh():
        say(f"VIOLATION at the end: {violation}")
    return ledger


# -- a server's life ---------------------------------------------------------------------------


def _run_until_killed(server: ServerProcess, users: list[User], after_s: float) -> None:
    kill = Kill()
    for user in users:
        user.meet(server.url)
        user.retire_runs()
    works = [work for user in users for work in (user.act, user.read)]
    threads = [threading.Thread(target=work, args=(kill,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    kill.is_done.wait(after_s)  # the load's time; nothing ends it but the clock
    kill.is_due.set()
    server.kill()
    kill.is_done.set()
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive(), "a client hangs after the kill"


def _kill_while_starting(server: ServerProcess, after_s: float) -> None:
    """A server that is killed while it settles what the one before has left, or an instant later."""

    def kill() -> None:
        if server.process is not None:
            server.process.kill()

    killer = threading.Timer(after_s, kill)
    killer.start()
    try:
        server.start()
    except AssertionError:
        pass  # it was killed before it was ready
    finally:
        killer.join()
    server.kill()


# -- looking --------------------------------------------------------------------------------------


def _look_after(server: ServerProcess, users: list[User], ledger: Ledger, chaos: random.Random) -> None:
    settled: list[tuple[User, Api, Witness]] = []
    for user in users:
        api = user.meet(server.url)
        for start in user.starts_in_doubt:
            _repeat_start(user, api, start, ledger)
        user.starts_in_doubt.clear()
        for run in user.runs:
            for message in [message for message in run.messages if message.message_id is None]:
                _repeat_message(api, run, message, ledger)
        settled += [(user, api, run) for run in user.runs if _examine(api, run, ledger) is not None]
    for user, api, run in chaos.sample(settled, min(SAMPLE, len(settled))):
        _try_next_message(user, api, run, ledger)
    if load.WITH_TOOLS:
        wait_until(lambda: not _tools_alive(), "every tool process of the killed server is gone")


def _repeat_start(user: User, api: Api, start: Start, ledger: Ledger) -> None:
    answers = [send_start(api, start) for _ in range(2)]
    runs = api.get(f"/v1/runs?session_id={start.body['session_id']}&limit=200")["runs"]
    made = [run["run_id"] for run in runs if run["metadata"].get("start") == start.key]
    told = [answer.json().get("run_id") for answer in answers]
    if answers[0].status_code == 409 and made == []:
        return  # it had not arrived, and another run has the session
    if [answer.status_code for answer in answers] != [201, 201] or told != made * 2:
        ledger.accuse(f"{user.name}: {start} was repeated twice: told {[each.text for each in answers]}, made {made}")
        return
    ledger.count("starts repeated")
    run = witness_of(answers[0].json(), user.name, start)
    user.runs.append(run)
    user.end(run)


def _repeat_message(api: Api, run: Witness, message: Message, ledger: Ledger) -> None:
    answer = send_message(api, run, message)
    if answer.status_code == 202:
        message.message_id = answer.json()["message_id"]
        ledger.count("messages repeated")
        return
    if answer.json().get("code") not in ("run_is_over", "queue_full"):
        ledger.accuse(f"{run.run_id}: {message} was repeated: {answer.text}")


def _examine(api: Api, run: Witness, ledger: Ledger) -> Found | None:
    """Wait until the run has settled, and check it; None if it does not settle."""
    try:
        Run(api, {"run_id": run.run_id, "session_id": run.session_id, "turn_id": run.first_turn}).wait_parked()
        found = look(api, run)
    except AssertionError as error:
        ledger.accuse(f"{run.run_id} of {run.user}: {error}")
        return None
    for fault in check(run, found):
        ledger.accuse(fault)
    ledger.count("events compared", len(run.seen))
    run.is_over = found.view["ended_at"] is not None
    return found


def _try_next_message(user: User, api: Api, run: Witness, ledger: Ledger) -> None:
    """The session goes on: in the run, or in a new one if that is over."""
    line = script("strict", key=f"{run.run_id}-{ledger.counts['next messages']}")
    ledger.count("next messages")
    if run.is_over:
        body = {"input": line, "planning": "none", "session_id": run.session_id, "interactive": True, "metadata": {}}
        start = Start(line, body)
        answer = send_start(api, start)
        if answer.status_code == 409:
            return  # a later run of the session lives
        follower = witness_of(answer.json(), user.name, start)
        user.runs.append(follower)
    else:
        message = Message(line, line)
        answer = send_message(api, run, message)
        if answer.status_code != 202:
            ledger.accuse(f"{run.run_id}: the next message was refused: {answer.text}")
            return
        message.message_id = answer.json()["message_id"]
        run.messages.append(message)
        follower = run
    found = _examine(api, follower, ledger)
    if found is not None:
        turn_id = next((each["turn_id"] for each in found.of_type("turn_started") if each["input"] == line), "none")
        if turn_id not in [each["turn_id"] for each in found.of_type("turn_completed")]:
            ledger.accuse(f"{follower.run_id}: the next message ({turn_id}) was not answered")


def _look_at_all(users: list[User], ledger: Ledger) -> None:
    """At the end, once more: what no later server may have touched."""
    for user in users:
        for run in user.retired + user.runs:
            found = _examine(user.api, run, ledger)
            ledger.count("events seen", len(run.seen))
            ledger.count("texts seen", sum(b'"type":"text"' in data for data in run.seen.values()))
            if found is not None:
                ledger.count("turns", len(found.of_type("turn_started")))
                ledger.count("turns lost", sum(end.get("cause") == "server_lost" for end in found.of_type("turn_cancelled")))
                ledger.count("turns resumed", len(found.of_type("turn_resumed")))
                ledger.count("tool calls", len(found.of_type("tool_call")))


def _tools_alive() -> list[int]:
    words = load.TOOL_COMMAND.split(" & ")[0].split()
    wanted = b"\0".join(word.encode() for word in words)
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal() and int(folder.name) != os.getpid():
            try:
                command = (folder / "cmdline").read_bytes()
            except OSError:
                continue  # it has ended meanwhile
            if command.rstrip(b"\0") == wanted:
                found.append(int(folder.name))
    return found
