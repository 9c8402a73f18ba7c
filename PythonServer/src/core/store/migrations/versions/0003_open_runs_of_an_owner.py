"""open runs of an owner: an index for the stop that names no run; and the runs of a session"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_OPEN = sa.text("state IN ('queued', 'running', 'awaiting_answer', 'stopping')")


def upgrade() -> None:
    op.create_index("ix_runs_session", "runs", ["session_id", "id"])
    op.create_index("ix_runs_open_owner", "runs", ["tenant", "owner"], sqlite_where=_OPEN, postgresql_where=_OPEN)


def downgrade() -> None:
    op.drop_index("ix_runs_open_owner", "runs")
    op.drop_index("ix_runs_session", "runs")
