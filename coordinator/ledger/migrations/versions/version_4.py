"""Version 4: a run has a nonce. Runs of older releases go on without: their assignments keep their ids."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from coordinator.ledger.migrations.column_types import TEXT

revision = "v4"
down_revision = "v3"


def upgrade() -> None:
    op.add_column("federation", sa.Column("nonce", TEXT, nullable=False, server_default=""))
