"""Every kind of turn arrives on the other side as it was, and can be taken up there where it was stopped."""

import json
from typing import Any

from tests.support.api_client import Run
from tests.support.five_checks import five_checks
from tests.support.going_back import HalfDone, go_back
from tests.support.model_server import ModelServer, script
from tests.support.plans import goal, say_done, start_plan
from tests.support.portable import comparable, export_session, import_session
from tests.support.servers import LocalServer, ServerProcess, gate

LONG_ID = "call-" + "7" * 295
HISTORY: list[dict[str, Any]] = [
    {"role": "user", "content": "look"},
    {"role": "assistant", "content": "", "tool_calls": [
        {"id": LONG_ID, "type": "function", "function": {"name": "look", "arguments": "{}"}},
        {"id": LONG_ID, "type": "function", "function": {"name": "look", "arguments": "{}"}},
    ]},
    {"role": "tool", "tool_call_id": LONG_ID, "content": "a parrot"},
    {"role": "assistant", "content": "A parrot."},
]  # fmt: skip


def _shell(key: str, command: str) -> str:
    arguments = json.dumps({"command": command}, separators=(",", ":"))
    return script("toolcall", name="shell", arguments=arguments, tokens=2, key=key)


def _say_and_stop(run: Run, key: str, command: str = "echo begun; sleep 600") -> None:
    last = run.view()["last_seq"]
    run.say(_shell(key, command))
    run.wait_event("tool_output", after=last, text="begun\n")
    run.cancel(wait_ms=30_000, reason="enough")


def test_turns_of_every_kind_are_exported_from_their_copy_as_from_the_original(
    shell_server: ServerProcess, openai_server: ServerProcess, models: ModelServer, key: str
) -> None:
    tool = {"id": "t", "title": "list", "tool": {"name": "shell", "arguments": {"command": "echo hi"}}}
    bad_tool = {"id": "f", "tool": {"name": "shell", "arguments": {"command": "exit 3"}}, "depends_on": ["t"]}
    run = start_plan(
        shell_server.api(key), tool, bad_tool, goal("i", goals=[goal("b", say_done(key), "f")]), messages=HISTORY
    )
    run.wait_parked()
    for text in (_shell(key, "echo out; exit 1"), script("error", status=400, key=key)):
        run.say(text)
        run.wait_parked()
    _say_and_stop(run, key)
    go_back(run, "rollback")
    _say_and_stop(run, key)
    last = run.view()["last_seq"]
    go_back(run, "resume")
    run.wait_event("tool_output", after=last, text="begun\n")
    run.cancel(wait_ms=30_000)

    lines = export_session(run.api, run.session_id)
    copy = import_session(openai_server.api(key), lines)

    told = [(line["state"], line["left_out"]) for line in lines if line["type"] == "turn"]
    assert told == [
        ("completed", None), ("completed", None), ("failed", None),
        ("cancelled", "rolled_back"), ("cancelled", "resumed"), ("cancelled", None),
    ]  # fmt: skip
    assert lines[-1]["resumes"] == lines[-2]["turn_id"]
    assert [goal["status"] for goal in lines[1]["goals"]] == ["COMPLETED", "FAILED", "CANCELLED"]
    assert lines[1]["spec"]["goals"][0] == tool
    assert comparable(export_session(copy.api, copy.session_id)) == comparable(lines)
    five_checks(copy, models, key)
    ids = [call["id"] for message in copy.transcript() for call in message.get("tool_calls", ())]
    assert ids[:2] == [LONG_ID, f"{LONG_ID}_2"]


def test_a_resume_on_the_other_side_keeps_what_was_finished_before_a_turn_that_had_no_plan(
    local: LocalServer, models: ModelServer, key: str
) -> None:
    plan = HalfDone(key)
    run = plan.start(local.api())
    run.cancel(wait_ms=30_000)
    with gate("engine.began") as held:
        go_back(run, "resume")
        held.wait_reached()
        run.cancel()
    run.wait_parked()
    lines = export_session(run.api, run.session_id)
    assert [line["goals"] for line in lines[2:]] == [[]]

    copy = import_session(local.api(), lines, f"?session_id=copy-{key}")
    turn_id = go_back(copy, "resume")["turn_id"]

    copy.wait_event("turn_completed", turn_id=turn_id)
    copy.wait_parked()
    plan.check_whole(copy, models)


def test_a_handed_in_plan_that_had_not_begun_is_run_on_the_other_side(
    local: LocalServer, models: ModelServer, key: str
) -> None:
    with gate("engine.began") as held:
        run = start_plan(local.api(), goal("a", say_done(key)), goal("b", say_done(key), "a"))
        held.wait_reached()
        run.cancel()
    run.wait_parked()
    lines = export_session(run.api, run.session_id)
    assert lines[1]["goals"] == []

    copy = import_session(local.api(), lines, f"?session_id=copy-{key}")
    for verb in ("resume", "regenerate"):
        turn_id = go_back(copy, verb)["turn_id"]
        copy.wait_event("turn_completed", turn_id=turn_id)
        copy.wait_parked()
        assert {name: each["status"] for name, each in copy.goals().items()} == {"a": "COMPLETED", "b": "COMPLETED"}
    assert len(models.calls(key=key)) == 4
    five_checks(copy, models, key)
