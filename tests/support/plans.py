"""Plans and runs that many tests begin with."""

from typing import Any

from tests.support.api_client import Api, Run
from tests.support.model_server import ModelServer, script
from tests.support.servers import LocalServer, ServerProcess


def goal(goal_id: str, prompt: str | None = None, *depends_on: str, goals: Any = ()) -> dict[str, Any]:
    """A goal of a plan that is handed in: with a prompt, or with goals inside."""
    made: dict[str, Any] = {"id": goal_id, "depends_on": list(depends_on)}
    return made | ({"goals": list(goals)} if prompt is None else {"prompt": prompt})


def start_plan(api: Api, *goals: dict[str, Any], text: str = "work on this", **fields: Any) -> Run:
    """A run with a plan."""
    return api.start(text, plan={"goals": list(goals)}, **fields)


def start_streaming(api: Api, models: ModelServer, key: str, tokens: int = 2000, **fields: Any) -> Run:
    """A run whose answer is being streamed, and has not reached its end by far."""
    run = api.start(script("trickle", tokens=tokens, interval_ms=20, key=key), **fields)
    run.wait_event("text")
    models.wait_tokens(1, key=key)
    return run


def start_silent(api: Api, models: ModelServer, key: str, cancel: str = "obey", **fields: Any) -> Run:
    """A run whose model call never gets an answer. ``cancel="deaf"``: nor does the request to cancel it."""
    calls = len(models.calls(key=key))
    run = api.start(script("silent", cancel=cancel, key=key), **fields)
    models.wait_calls(calls + 1, key=key)
    return run


def say_done(key: str) -> str:
    """A message that is answered at once."""
    return script("trickle", tokens=2, interval_ms=0, key=key)


def seen_at(server: ServerProcess | LocalServer, run: Run) -> Run:
    """The same run as its user sees it at another start of the server, or over other connections."""
    about = {"run_id": run.id, "session_id": run.session_id, "turn_id": run.first_turn}
    return Run(Api(server.url, run.api.token), about)


def all_events(run: Run) -> list[dict[str, Any]]:
    """What is in the log of a run that waits or is over."""
    last = run.view()["last_seq"]
    return run.events(lambda event: event["seq"] == last)


def stop_causes(run: Run) -> list[str]:
    """The cause of each stop in the log of a run that waits or is over."""
    return [event["cause"] for event in all_events(run) if event["type"] == "stop_requested"]


def delivered_up_to(run: Run, last: str) -> list[str]:
    """Ids of the delivered messages in order, up to this one."""
    events = run.events(lambda event: event["type"] == "message_delivered" and event["message_id"] == last)
    return [event["message_id"] for event in events if event["type"] == "message_delivered"]
