"""Which model an agent asks: the one it names, the newest that fits its pattern, or the one to fall back to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from core.agent.model_catalog import ModelCatalog
from core.agent.ports import Asked, TurnPort
from core.errors import ProviderError
from core.provider.failures import ModelListFailed, NoSuchModel
from core.provider.fallback import may_another_answer
from core.provider.newest import newest

#: As many names in an error as a reader can take in.
_SHOWN: Final = 10


@dataclass(frozen=True, slots=True)
class ModelWish:
    """What an agent wants: a ``pattern`` goes before a name; None where it wants none."""

    pattern: str | None = None
    fallback: str | None = None


class ModelChoice:
    """Answers for each request. Who has fallen back stays with that model as long as the same goal asks."""

    def __init__(self, wish: ModelWish, catalog: ModelCatalog) -> None:
        self._wish = wish
        self._catalog = catalog

    def model(self, named: str, asked: Asked, port: TurnPort) -> str:
        """The model for a request that names ``named``. Blocks if the list is wanted; ``ProviderError``, ``Cancelled``."""
        if asked.has_fallen_back and self._wish.fallback is not None:
            return self._wish.fallback
        if self._wish.pattern is None:
            return named
        return self._newest(self._wish.pattern, asked, port)

    def fall_back(self, error: ProviderError, named: str, asked: Asked) -> str | None:
        """The model to ask after this failure, from now on; None if there is none, or it would not help."""
        fallback = self._wish.fallback
        if asked.has_fallen_back or fallback is None or not may_another_answer(error):
            return None
        if self._wish.pattern is None and fallback == named:
            return None
        asked.has_fallen_back = True
        return fallback

    def _newest(self, pattern: str, asked: Asked, port: TurnPort) -> str:
        try:
            names = self._catalog.names(asked, port)
        except ProviderError as error:
            raise ModelListFailed(pattern, error) from error
        found = newest(pattern, names)
        if found is None:
            raise NoSuchModel(f"no model fits the pattern {pattern!r}; the model server lists {_shown(names)}")
        return found


def _shown(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return (", ".join(names[:_SHOWN]) or "none") + more
