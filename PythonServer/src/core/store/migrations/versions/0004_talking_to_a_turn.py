"""talking to a running turn: how a message goes in, questions to the user, compacted histories"""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("messages", sa.Column("mode", sa.String(length=20), nullable=False, server_default="queue"))
    op.add_column("messages", sa.Column("goal_id", sa.String(length=128), nullable=True))
    op.add_column("messages", sa.Column("position", sa.Integer(), nullable=True))
    op.add_column("messages", sa.Column("settled_at", sa.Float(), nullable=True))
    op.create_table(
        "questions",
        sa.Column("id", sa.String(length=40), primary_key=True),
        sa.Column("run_id", sa.String(length=40), sa.ForeignKey("runs.id"), nullable=False),
        sa.Column("turn_id", sa.String(length=40), nullable=False),
        sa.Column("goal_id", sa.String(length=128), nullable=True),
        sa.Column("call_id", sa.String(length=40), nullable=False),
        sa.Column("question", sa.Text(), nullable=False),
        sa.Column("options", sa.JSON(), nullable=True),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.Column("answer", sa.Text(), nullable=True),
        sa.Column("comment", sa.Text(), nullable=True),
        sa.Column("cause", sa.String(length=20), nullable=True),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("expires_at", sa.Float(), nullable=True),
        sa.Column("settled_at", sa.Float(), nullable=True),
    )
    op.create_index("ix_questions_run", "questions", ["run_id", "id"])
    op.create_table(
        "compactions",
        sa.Column("id", sa.String(length=40), primary_key=True),
        sa.Column("session_id", sa.String(length=128), nullable=False),
        sa.Column("run_id", sa.String(length=40), sa.ForeignKey("runs.id"), nullable=False),
        sa.Column("first", sa.Integer(), nullable=False),
        sa.Column("last", sa.Integer(), nullable=False),
        sa.Column("summary", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("undone_at", sa.Float(), nullable=True),
    )
    op.create_index("ix_compactions_session", "compactions", ["session_id", "id"])


def downgrade() -> None:
    op.drop_table("compactions")
    op.drop_table("questions")
    with op.batch_alter_table("messages") as batch_op:
        for column in ("settled_at", "position", "goal_id", "mode"):
            batch_op.drop_column(column)
