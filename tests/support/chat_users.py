"""What of the users' words a request must have, and must not have."""

from __future__ import annotations

from core.provider.provider import ModelRequest
from tests.support.chat_invariants import Log
from tests.support.chat_said import Row, told_in


def check_users(log: Log, turn_id: str, request: ModelRequest) -> None:
    """What users said before is in the request, unaltered and in order; what was taken out of the transcript is not.
    Of what they said in this turn, it has nothing that is not in the log.
    """
    current = next(turn for turn in log.turns if turn["id"] == turn_id)
    before = [turn for turn in log.turns if turn["number"] < current["number"] and turn["left_out"] is None]
    users = [message["content"] for message in request.messages if message["role"] == "user"]
    handed_in = [m["content"] for m in log.transcript if m["turn_id"] is None and m["role"] == "user"]
    rest = list(users)
    for words in handed_in:
        if words in rest:
            rest.remove(words)
    expected: list[str] = []
    for turn in before:
        expected.append(turn["input"])
        messages = log.of_turn(turn)[-1]["data"]["messages"] if turn["state"] != "open" else []
        expected += [message["content"] for message in messages if message["role"] == "user"]
    assert rest[: len(expected)] == expected
    _check_own_users(log, current, rest[len(expected) :])


def _check_own_users(log: Log, turn: Row, users: list[str]) -> None:
    """One is the goal's prompt, and the others are what was delivered to the turn, or to those that it resumes."""
    told: list[str] = []
    each: Row | None = turn
    while each is not None:
        told = [data["text"] for data in told_in(log.of_turn(each))] + told
        each = next((other for other in log.turns if other["id"] == each["resumes"]), None)
    prompts = [words for words in users if not _take_told(words, told)]
    assert len(prompts) == 1, "the model has something of the user that the log has not, or twice"


def _take_told(words: str, told: list[str]) -> bool:
    """Whether this is made of messages that were told; they are taken out of the list."""
    while words:
        found = next((text for text in told if words == text or words.startswith(f"{text}\n\n")), None)
        if found is None:
            return False
        told.remove(found)
        words = words[len(found) :].removeprefix("\n\n")
    return True
