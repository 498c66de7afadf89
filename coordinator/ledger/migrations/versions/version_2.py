"""Version 2: the form of an assignment's step, and what devices had no memory for."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from coordinator.ledger.migrations.column_types import INTEGER, TEXT

revision = "v2"
down_revision = "v1"


def upgrade() -> None:
    op.add_column("assignments", sa.Column("form", TEXT, nullable=False, server_default="plain"))
    op.create_table(
        "setbacks",
        sa.Column("assignment_id", TEXT, sa.ForeignKey("assignments.assignment_id"), primary_key=True),
        sa.Column("code", TEXT, nullable=False),
        sa.Column("peak", INTEGER, nullable=False),
        sa.Column("memory_limit", INTEGER, nullable=False),
        sqlite_strict=True,
    )
