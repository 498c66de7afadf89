"""Version 1: a run, its rounds, what was handed out in them and what came back."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from coordinator.ledger.migrations.column_types import BLOB, FLOAT, INTEGER, TEXT

revision = "v1"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "federation",
        sa.Column("id", TEXT, primary_key=True),
        sa.Column("config", TEXT, nullable=False),
        sa.Column("config_digest", TEXT, nullable=False),
        sa.Column("seed", INTEGER, nullable=False),
        sa.Column("created_at", FLOAT, nullable=False),
        sa.Column("state", TEXT, nullable=False),
        sqlite_strict=True,
    )
    op.create_table(
        "profiles",
        sa.Column("device", TEXT, primary_key=True),
        sa.Column("profile", BLOB, nullable=False),
        sa.Column("frozen_at", FLOAT, nullable=False),
        sqlite_strict=True,
    )
    op.create_table(
        "blobs",
        sa.Column("digest", TEXT, primary_key=True),
        sa.Column("size", INTEGER, nullable=False),
        sa.Column("created_at", FLOAT, nullable=False),
        sqlite_strict=True,
    )
    op.create_table(
        "artifacts",
        sa.Column("export_key", TEXT, primary_key=True),
        sa.Column("manifest_digest", TEXT, sa.ForeignKey("blobs.digest"), nullable=False),
        sqlite_strict=True,
    )
    op.create_table(
        "rounds",
        sa.Column("round", INTEGER, primary_key=True, autoincrement=False),
        sa.Column("attempt", INTEGER, primary_key=True, autoincrement=False),
        sa.Column("state", TEXT, nullable=False),
        sa.Column("deadline_s", FLOAT, nullable=False),
        sa.Column("participants", BLOB, nullable=False),
        sa.Column("model_digest", TEXT, nullable=False, server_default=""),
        sa.Column("metrics", BLOB, nullable=False),
        sqlite_strict=True,
    )
    op.create_table(
        "assignments",
        sa.Column("assignment_id", TEXT, primary_key=True),
        sa.Column("round", INTEGER, nullable=False),
        sa.Column("attempt", INTEGER, nullable=False),
        sa.Column("device", TEXT, nullable=False),
        sa.Column("level", TEXT, nullable=False),
        sa.Column("cut", BLOB, nullable=False),
        sa.Column("artifact_digest", TEXT, nullable=False),
        sa.Column("weights_digest", TEXT, nullable=False),
        sa.Column("work_order", BLOB, nullable=False),
        sa.Column("state", TEXT, nullable=False),
        sa.Column("code", TEXT, nullable=False, server_default=""),
        sa.Column("reason", TEXT, nullable=False, server_default=""),
        sa.UniqueConstraint("round", "attempt", "device"),
        sa.ForeignKeyConstraint(["round", "attempt"], ["rounds.round", "rounds.attempt"]),
        sqlite_strict=True,
    )
    op.create_table(
        "updates",
        sa.Column("assignment_id", TEXT, sa.ForeignKey("assignments.assignment_id"), primary_key=True),
        sa.Column("update_digest", TEXT, nullable=False),
        sa.Column("report", BLOB, nullable=False),
        sqlite_strict=True,
    )
    op.create_table(
        "measurements",
        sa.Column("device", TEXT, primary_key=True),
        sa.Column("export_key", TEXT, primary_key=True),
        sa.Column("batch", INTEGER, primary_key=True, autoincrement=False),
        sa.Column("predicted_peak", INTEGER, nullable=False),
        sa.Column("measured_peak", INTEGER, nullable=False),
        sa.Column("step_ms", FLOAT, nullable=False),
        sqlite_strict=True,
    )
