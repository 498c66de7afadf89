"""Version 6: when rounds and assignments came to where they are, and an index to count assignments by.

Rows of older releases keep 0: not known.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from coordinator.ledger.migrations.column_types import FLOAT

revision = "v6"
down_revision = "v5"

_TIMES = {
    "rounds": ("planned_at", "published_at", "aggregating_at", "ended_at"),
    "assignments": ("planned_at", "accepted_at", "answered_at"),
}


def upgrade() -> None:
    for table, names in _TIMES.items():
        for name in names:
            op.add_column(table, sa.Column(name, FLOAT, nullable=False, server_default="0"))
    # Assignments are counted without their rows, whose cuts and orders are most of the database.
    op.create_index("assignments_counted", "assignments", ["round", "attempt", "state", "level", "device"])
