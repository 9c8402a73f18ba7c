"""Text that JSON cut in the middle of a character, or that cannot be kept.

A server that counts UTF-16 units may send an emoji as two deltas, ``"\\ud83d"`` and ``"\\ude00"``. Each is
legal JSON and neither is text: it cannot be encoded as UTF-8. A NUL, ``"\\u0000"``, can; but PostgreSQL keeps
none, and neither an import nor any route of ours takes one.
"""

import re

_UNFIT = re.compile("[\x00\ud800-\udfff]")


def whole_text(text: str) -> str:
    """Joins surrogate pairs; a surrogate without its partner becomes U+FFFD, and so does a NUL."""
    if _UNFIT.search(text) is None:
        return text
    text = text.replace("\x00", "\ufffd")
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


class TextJoiner:
    """Makes whole text of a row of pieces; holds back at most one code unit."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held = ""

    def take(self, piece: str) -> str:
        """The text that is certain so far; may be empty."""
        text = self._held + piece
        self._held = ""
        if text and "\ud800" <= text[-1] <= "\udbff":
            text, self._held = text[:-1], text[-1]
        return whole_text(text)

    def end(self) -> str:
        """What was held back, when nothing follows."""
        held, self._held = self._held, ""
        return whole_text(held)
