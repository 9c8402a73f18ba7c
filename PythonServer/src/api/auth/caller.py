"""Who is calling, as the token says and as nothing else can."""

from dataclasses import dataclass
from typing import Literal

RUNS_CREATE = "runs:create"
RUNS_READ = "runs:read"
RUNS_STOP = "runs:stop"
#: Those that a route asks for.
SCOPES = frozenset({RUNS_CREATE, RUNS_READ, RUNS_STOP})
#: What a token without a ``scope`` claim may do.
DEFAULT_SCOPES = frozenset({RUNS_CREATE, RUNS_READ})
DEFAULT_TENANT = "default"


@dataclass(frozen=True, slots=True)
class Caller:
    """An authenticated caller. ``session_id`` set means: this caller sees that session only.

    ``kind`` is ``user`` for a user-session token, ``remote`` for the remote session API token, which belongs
    to a service and owns nothing.
    """

    sub: str
    tenant: str = DEFAULT_TENANT
    session_id: str | None = None
    scopes: frozenset[str] = DEFAULT_SCOPES
    kind: Literal["user", "remote"] = "user"

    def has_any_of(self, scopes: frozenset[str]) -> bool:
        """Whether one of these scopes was granted; none needed is always granted."""
        return not scopes or not self.scopes.isdisjoint(scopes)
