"""The shapes of the answers about compaction. For the API's description."""

from pydantic import BaseModel, Field


class CompactionStarted(BaseModel):
    """The turn that compacts the history; how it ends, and what it left out, stands in the events."""

    run_id: str
    turn_id: str


class CompactionUndone(BaseModel):
    """The newest compaction was taken back."""

    run_id: str
    undone: bool = Field(description="False: none was in force")
