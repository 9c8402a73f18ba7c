"""Identifiers made by this server: a prefix that names the kind, and a ULID."""

from typing import Literal

from ulid import ULID

Prefix = Literal["s", "r", "t", "g", "c", "q", "m", "k"]


def new_id(prefix: Prefix) -> str:
    """A new id such as ``r_01JQ…``: sorts by time, unique without coordination, never a secret."""
    return f"{prefix}_{ULID()}"
