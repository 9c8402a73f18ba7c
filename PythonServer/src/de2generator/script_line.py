"""The line by which a request chooses how the gateway behaves: ``/script NAME key=value …``."""

import json
import re
from dataclasses import dataclass
from typing import Any

from de2generator.errors import BadRequestError

_IN_MODEL = re.compile(r",(?=[a-z_]+=)")


@dataclass(frozen=True, slots=True)
class ScriptLine:
    """A script's name and its options, in the order given; an option may be repeated.

    A value ends at white space: inside JSON, write a space as ``\\u0020``.
    """

    name: str
    options: tuple[tuple[str, str], ...] = ()

    @classmethod
    def parse(cls, words: list[str]) -> "ScriptLine":
        """From the words after ``/script``. Raises ``BadRequestError`` if one is no ``key=value``."""
        options = []
        for word in words[1:]:
            key, equals, value = word.partition("=")
            if not equals:
                raise BadRequestError(
                    f"script option {word!r} is not key=value; a value holds no spaces: in JSON write \\u0020"
                )
            options.append((key, value))
        return cls(words[0], tuple(options))

    def all(self, key: str) -> list[str]:
        """Every value of a repeatable option."""
        return [value for name, value in self.options if name == key]

    def text(self, key: str, default: str = "") -> str:
        """The first value of an option."""
        return next((value for name, value in self.options if name == key), default)

    def phrase(self, key: str, default: str) -> str:
        """As ``text``, with ``\\u0020`` read as a space also outside JSON."""
        return self.text(key, default).replace("\\u0020", " ")

    def number(self, key: str, default: int) -> int:
        """A whole number. Raises ``BadRequestError`` if it is none."""
        value = self.text(key, str(default))
        try:
            return int(value)
        except ValueError:
            raise BadRequestError(f"script option {key}={value} is not a whole number") from None

    def seconds(self, key: str, default_ms: int) -> float:
        """An option in milliseconds, as seconds."""
        return self.number(key, default_ms) / 1000

    def is_on(self, key: str) -> bool:
        """Whether a switch such as ``nonsense=1`` is given and not 0."""
        return self.text(key, "0") not in {"", "0", "false"}

    def json(self, key: str) -> Any:
        """A value that is JSON. Raises ``BadRequestError`` if it is not."""
        value = self.text(key)
        try:
            return json.loads(value)
        except ValueError:
            raise BadRequestError(f"script option {key} is not JSON: {value!r}") from None


def find_script_lines(text: str, model: str) -> list[ScriptLine]:
    """The script lines of a user message, then the one of a model name ``script:NAME,key=value,…``."""
    lines = [
        ScriptLine.parse(words[1:])
        for words in (line.split() for line in text.splitlines())
        if len(words) > 1 and words[0] == "/script"
    ]
    if model.startswith("script:"):
        lines.append(ScriptLine.parse(_IN_MODEL.split(model.removeprefix("script:"))))
    return lines
