"""Plans: a believable one made of the user's message, and the odd ones that the script ``plan`` asks for."""

import itertools
import json
import re
from typing import Any

from de2generator.scene import Scene

_GREETING = re.compile(r"\W*(hi|hello|hey|yo|thanks?|thank you|good (morning|day|evening)|ok(ay)?|bye)\b", re.I)
_SHORT_WORDS = 6
_PART = re.compile(r"\n+|;|(?<=[.!?])\s+|,?\s+(?:and then|then|and also)\s+", re.I)

Goal = dict[str, Any]


def is_greeting(message: str) -> bool:
    """Whether a message only greets."""
    return bool(_GREETING.match(message)) and len(message.split()) <= 4


def make_plan(message: str) -> list[Goal]:
    """Goals for a message: one for a short message or a script line, else three to five, the last sums up."""
    text = message.strip()
    has_script = any(line.split()[:1] == ["/script"] for line in text.splitlines())
    if has_script or is_greeting(text) or len(text.split()) < _SHORT_WORDS:
        return [_goal("answer", _title(text) or "Answer", message)]
    parts = [part.strip().lstrip("-* ") for part in _PART.split(text)]
    parts = [part for part in parts if len(part.split()) >= 2]
    goals = _goals_of_parts(parts[:4]) if len(parts) >= 2 else _goals_of_topic(text)
    names = ", ".join(goal["title"] for goal in goals)
    closing = f"Sum up the results ({names}) and answer: {text}"
    return [*goals, _goal("summary", "Sum up", closing, [goal["id"] for goal in goals])]


def fit_to_schema(goals: list[Goal], parameters: dict[str, Any]) -> list[Goal]:
    """Keep the fields that the schema of a goal knows; all, where it names none."""
    known = resolve(parameters, _goal_schema(parameters)).get("properties")
    return [{name: goal[name] for name in goal if name in known} for goal in goals] if known else goals


def is_plan_schema(parameters: dict[str, Any]) -> bool:
    """Whether a function's parameters describe a plan: a list ``goals`` of objects with a prompt."""
    goal = resolve(parameters, _goal_schema(parameters))
    return "goals" in (parameters.get("properties") or {}) and "prompt" in (goal.get("properties") or {"prompt"})


def resolve(root: dict[str, Any], schema: Any) -> dict[str, Any]:
    """Follow a ``$ref`` inside the same document."""
    while isinstance(schema, dict) and isinstance(schema.get("$ref"), str):
        found: Any = root
        for name in schema["$ref"].lstrip("#/").split("/"):
            found = found.get(name, {}) if isinstance(found, dict) else {}
        schema = found
    return schema if isinstance(schema, dict) else {}


async def plan(scene: Scene) -> None:
    """``plan=JSON | many=N | cycle=1 | unknown=1 | duplicate=1 | empty=1 | nonsense=1 | text=1``: a given
    or odd plan.

    A list as ``plan`` stands for its goals. ``prompt=`` is the prompt of the made-up goals, ``chain=1``
    makes each of ``many`` depend on the one before. ``text=1`` says the plan as text in place of a tool
    call.
    """
    line = scene.line
    arguments = "this is no plan {" if line.is_on("nonsense") else json.dumps(_odd_plan(scene), ensure_ascii=False)
    if line.is_on("text") or not scene.chat.must_call:
        await scene.reply.text(arguments)
        await scene.reply.finish()
        return
    await scene.reply.tool_call(0, scene.chat.must_call, arguments, line.seconds("interval_ms", 0))
    await scene.reply.finish("tool_calls")


def _odd_plan(scene: Scene) -> Any:
    line = scene.line
    prompt = line.phrase("prompt", "Say a few words.")
    if line.text("plan"):
        given = line.json("plan")
        return {"goals": given} if isinstance(given, list) else given
    if line.is_on("cycle"):
        return {"goals": [_goal("a", "A", prompt, ["b"]), _goal("b", "B", prompt, ["a"])]}
    if line.is_on("unknown"):
        return {"goals": [_goal("a", "A", prompt, ["nobody"])]}
    if line.is_on("duplicate"):
        return {"goals": [_goal("a", "A", prompt), _goal("a", "A again", prompt)]}
    if line.is_on("empty"):
        return {"goals": []}
    numbers = range(1, line.number("many", 3) + 1)
    goals = [_goal(f"g{number}", f"Goal {number}", prompt) for number in numbers]
    if line.is_on("chain"):
        for before, goal in itertools.pairwise(goals):
            goal["depends_on"] = [before["id"]]
    return {"goals": goals}


def _goals_of_parts(parts: list[str]) -> list[Goal]:
    return [_goal(f"part_{number}", _title(part), part) for number, part in enumerate(parts, start=1)]


def _goals_of_topic(text: str) -> list[Goal]:
    return [
        _goal("facts", "Gather the facts", f"Gather the facts that matter for this: {text}"),
        _goal("options", "Look at the options", f"Describe the possible ways to deal with this: {text}"),
        _goal("risks", "Weigh the risks", f"Say what could go wrong with each way: {text}", ["options"]),
    ]


def _goal(goal_id: str, title: str, prompt: str, depends_on: list[str] | None = None) -> Goal:
    return {"id": goal_id, "title": title, "prompt": prompt, "depends_on": depends_on or []}


def _title(text: str) -> str:
    words = text.split()
    title = " ".join(words[:7]) + ("…" if len(words) > 7 else "")
    return title[:1].upper() + title[1:60]


def _goal_schema(parameters: dict[str, Any]) -> Any:
    goals = resolve(parameters, (parameters.get("properties") or {}).get("goals"))
    return goals.get("items")
