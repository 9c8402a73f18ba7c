"""The request for a summary of a part of a conversation, and what is made of the answer."""

from typing import Any, Final

from core.errors import ProviderNonsense

INSTRUCTIONS: Final = (
    "Below is a part of a conversation between a user and an assistant. Write a summary that will stand in its place, "
    "so that the assistant can go on as if it had read all of it. Keep what the user wants and has decided, names, "
    "numbers, paths and other facts that may be needed again, what tools were used for and what they found or changed, "
    "and what is still open. Leave out greetings and whatever was superseded later. Do not answer the user and do not "
    "do what the conversation asks for. Answer with the summary alone, in the language of the conversation."
)

#: Characters of a tool call's arguments, and of its result, that are shown; of a result both ends.
_ARGUMENTS: Final = 400
_RESULT: Final = 1500


def summary_messages(older: str | None, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The request. The conversation is text in one user message; ``older`` is the summary of what came before it."""
    parts = [f"summary of what came before:\n{older}"] if older is not None else []
    names = {call["id"]: call["function"]["name"] for each in messages for call in each.get("tool_calls", ())}
    parts += [_shown(message, names) for message in messages]
    return [{"role": "system", "content": INSTRUCTIONS}, {"role": "user", "content": "\n\n".join(parts)}]


def _shown(message: dict[str, Any], names: dict[str, str]) -> str:
    if message["role"] == "tool":
        return f"result of {names.get(message['tool_call_id'], 'a tool')}:\n{_cut(message['content'], _RESULT)}"
    lines = [f"{message['role']}:"]
    if message["content"].strip():
        lines.append(message["content"])
    for call in message.get("tool_calls", ()):
        function = call["function"]
        lines.append(f"[calls {function['name']} with {_cut(function['arguments'], _ARGUMENTS)}]")
    return "\n".join(lines)


def _cut(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n[… {len(text) - 2 * half} characters left out …]\n{text[-half:]}"


def read_summary(answer: str) -> str:
    """The summary; ``ProviderNonsense`` if there is none."""
    summary = answer.replace("\0", "").strip()  # PostgreSQL keeps none
    if not summary:
        raise ProviderNonsense("the model's summary of the conversation is empty")
    return summary
