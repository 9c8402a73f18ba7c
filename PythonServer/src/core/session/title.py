"""A name for a session, made by the model from the first turn that came to its end."""

from typing import Any, Final

_INSTRUCTIONS: Final = "Name the conversation below in at most six words. Answer with the name alone."
_SHOWN: Final = 2000
MAX_TITLE: Final = 80


def title_messages(asked: str, said: str) -> list[dict[str, Any]]:
    """The request; long texts are shown in part."""
    shown = f"The user:\n{asked[:_SHOWN]}\n\nThe assistant:\n{said[:_SHOWN]}"
    return [{"role": "system", "content": _INSTRUCTIONS}, {"role": "user", "content": shown}]


def read_title(answer: str) -> str | None:
    """The first line with something in it, without quotes around it; None if there is none."""
    answer = answer.replace("\0", "")  # PostgreSQL keeps none
    line = next((line.strip(" \t\"'“”*#.") for line in answer.splitlines() if line.strip()), "")
    return line[:MAX_TITLE] or None
