"""Who may see and touch what: the owner checks, all of them, in this one place.

What a caller does not own does not exist for them: the error is the same as for an unknown id.
"""

from typing import Any, Protocol

from sqlalchemy import ColumnElement, Connection, RowMapping, and_, select

from core.errors import NotFound
from core.store.tables import runs, sessions


class Caller(Protocol):
    """Who calls: from a verified token, never from the request's body."""

    @property
    def sub(self) -> str:
        """The user; never empty."""

    @property
    def tenant(self) -> str:
        """The user's tenant."""

    @property
    def session_id(self) -> str | None:
        """If set, the one session that the caller may see."""


def find_run(connection: Connection, caller: Caller, run_id: str) -> RowMapping:
    """The row of a run of this caller, or :class:`NotFound`."""
    query = select(runs).where(runs.c.id == run_id, owned_by(caller, runs))
    row = connection.execute(query).mappings().first()
    if row is None:
        raise NotFound("there is no such run")
    return row


def find_session(connection: Connection, caller: Caller, session_id: str) -> RowMapping | None:
    """The row of a session of this caller; None if nobody has it; :class:`NotFound` if it is out of reach."""
    row = connection.execute(select(sessions).where(sessions.c.id == session_id)).mappings().first()
    if caller.session_id is not None and caller.session_id != session_id:
        raise NotFound("there is no session of yours with that id")
    if row is not None and (row["tenant"], row["owner"]) != (caller.tenant, caller.sub):
        raise no_such_session()
    return row


def no_such_session() -> NotFound:
    """Nobody's or somebody else's."""
    return NotFound("there is no session of yours with that id; choose another id")


def owned_by(caller: Caller, table: Any = runs) -> ColumnElement[bool]:
    """The condition for rows of ``runs`` that this caller may see."""
    mine = and_(table.c.tenant == caller.tenant, table.c.owner == caller.sub)
    return mine if caller.session_id is None else and_(mine, table.c.session_id == caller.session_id)
