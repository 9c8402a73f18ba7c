"""What the gateway says where no script is asked for: text and plans that look like an assistant's.

The same request gets the same words. The rate is set by the gateway (20 tokens a second unless told
otherwise).
"""

import hashlib
import json
import random
import re
from collections.abc import Iterator
from typing import Any

from de2generator.plans import fit_to_schema, is_greeting, is_plan_schema, make_plan, resolve
from de2generator.scene import Pace, Scene

_FEWEST_TOKENS, _MOST_TOKENS = 130, 230
_COMMON = re.compile(
    r"about|after|again|also|answer|because|before|being|could|describe|does|from|gather|have|here|into|just|like"
    r"|matter|more|most|must|please|possible|shall|should|some|something|tell|than|that|their|them|then|there"
    r"|these|they|this|those|what|when|where|which|while|will|with|would|write|your",
    re.IGNORECASE,
)
_GREETINGS = (
    "Hello, good to hear from you. Tell me what you would like to get done and I will make a plan for it. ",
    "Hi there. Give me a task in your own words, and I will split it into goals and work on them. ",
)
_OPENINGS = (
    "Let me take {a} first. ",
    "The heart of this is {a}. ",
    "There are a few things to say about {a}. ",
)
_SENTENCES = (
    "In practice {a} depends on {b}, so it pays to look at the two together. ",
    "Most people begin with {a} and come to {b} only once something has gone wrong. ",
    "A small trial with {a} tells more than a long debate about {b}. ",
    "If {a} is already settled, then {b} follows almost by itself. ",
    "The cost of {a} is easy to see, while the cost of {b} shows up later. ",
    "It helps to write down what is known about {a} and to mark what is only assumed. ",
    "A second look at {b} often changes the order in which things should be done. ",
    "For {a} two or three good examples are enough to see the pattern. ",
    "Where {a} and {b} pull in different directions, the simpler choice usually wins. ",
    "One should ask early who will look after {b} when the first excitement is over. ",
    "Numbers for {a} are rough at this point, and that is fine for a first decision. ",
    "What surprises many is how little {b} matters once {a} is in good order. ",
    "A list of open questions about {a} keeps everyone honest. ",
    "The safest step is the one that can be taken back, and with {a} that is possible. ",
)
_CLOSING = "In short: start with {a}, keep an eye on {b}, and decide again after the first result."


def _is_for_a_name(scene: Scene) -> bool:
    """Whether a short title is asked for, and no answer."""
    first = scene.chat.messages[0]
    return first.get("role") == "system" and str(first.get("content")).startswith("Name the conversation")


def name(shown: str) -> list[str]:
    """The first words of the user's message in a conversation that is shown."""
    asked = shown.partition("\n")[2] or shown
    return [f"{word} " for word in asked.split()[:6]]


async def answer(scene: Scene) -> None:
    """Answer like an assistant: call the tool that is forced, else talk for six to twelve seconds."""
    if scene.chat.must_call:
        await _call_tool(scene)
        return
    pace = Pace(1 / scene.tokens_per_second)
    for token in name(scene.chat.asked) if _is_for_a_name(scene) else say(scene.chat.asked):
        await pace.wait()
        await scene.reply.text(token)
    await scene.reply.finish()


def say(asked: str) -> Iterator[str]:
    """The tokens of an answer, words with the space after them. The same message gives the same ones."""
    chance = _chance(asked)
    target = chance.randint(_FEWEST_TOKENS, _MOST_TOKENS)
    words = _topics(asked)
    sentences: list[str] = []
    opening = chance.choice(_GREETINGS if is_greeting(asked) else _OPENINGS)
    said = 0
    while said < target:
        a, b = chance.sample(words, 2)
        sentences = sentences or chance.sample(_SENTENCES, len(_SENTENCES))
        sentence = opening or sentences.pop()
        opening = ""
        for token in _tokens(sentence.format(a=a, b=b)):
            said += 1
            yield token
    yield from _tokens(_CLOSING.format(a=words[0], b=words[1]))


def arguments_for(schema: dict[str, Any], root: dict[str, Any] | None = None) -> Any:
    """The smallest value that a JSON schema accepts, as far as its common words go."""
    root = schema if root is None else root
    schema = resolve(root, schema)
    for word in ("const", "default"):
        if word in schema:
            return schema[word]
    for word in ("enum", "examples"):
        if schema.get(word):
            return schema[word][0]
    for word in ("anyOf", "oneOf", "allOf"):
        if schema.get(word):
            return arguments_for(schema[word][0], root)
    kind = schema.get("type", "object" if "properties" in schema else "null")
    return _smallest(kind[0] if isinstance(kind, list) else kind, schema, root)


def _smallest(kind: str, schema: dict[str, Any], root: dict[str, Any]) -> Any:
    match kind:
        case "object":
            properties = schema.get("properties") or {}
            return {name: arguments_for(properties.get(name) or {}, root) for name in schema.get("required") or []}
        case "array":
            return [arguments_for(schema.get("items") or {}, root)] * int(schema.get("minItems") or 0)
        case "string":
            return "a" * int(schema.get("minLength") or 0)
        case "integer" | "number":
            return max(0, schema.get("minimum", 0), schema.get("exclusiveMinimum", -1) + 1)
        case "boolean":
            return False
    return None


async def _call_tool(scene: Scene) -> None:
    tool = scene.chat.forced_tool()
    parameters = tool.get("parameters") or {}
    if is_plan_schema(parameters):
        arguments: Any = {"goals": fit_to_schema(make_plan(scene.chat.asked), parameters)}
    else:
        arguments = arguments_for(parameters) or {}
    pause_s = 0.4 / scene.tokens_per_second
    await scene.reply.tool_call(0, str(tool["name"]), json.dumps(arguments, ensure_ascii=False), pause_s)
    await scene.reply.finish("tool_calls")


def _topics(asked: str) -> list[str]:
    """At least two words or phrases to talk about, the longest of the message first."""
    words = dict.fromkeys(re.findall(r"[^\W\d_][\w'-]{3,}", asked))
    found = [word for word in words if not _COMMON.fullmatch(word)]
    longest = sorted(found, key=len, reverse=True)[:8]
    return [*longest, *("the first step", "the goal", "the result")][: max(len(longest), 3)]


def _tokens(text: str) -> list[str]:
    return re.findall(r"\S+\s*", text)


def _chance(text: str) -> random.Random:
    """A source of choices that is the same for the same text."""
    seed = hashlib.sha256(text.encode("utf-8", "replace")).digest()
    return random.Random(seed)  # noqa: S311 - words, not secrets
