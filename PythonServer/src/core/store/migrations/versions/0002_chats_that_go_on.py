"""chats that go on: titles, resumed and rolled-back turns, handed-in history, usage"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("sessions", sa.Column("title", sa.String(length=200), nullable=True))
    op.add_column("turns", sa.Column("history_seq", sa.Integer(), nullable=True))
    op.add_column("turns", sa.Column("left_out", sa.String(length=20), nullable=True))
    op.add_column("turns", sa.Column("resumes", sa.String(length=40), nullable=True))
    op.add_column("turns", sa.Column("usage", sa.JSON(), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("turns") as batch_op:
        for column in ("usage", "resumes", "left_out", "history_seq"):
            batch_op.drop_column(column)
    with op.batch_alter_table("sessions") as batch_op:
        batch_op.drop_column("title")
