"""Version 3: which update was counted where, what is waiting to be, and what several coordinators share.

Rounds that older releases aggregated get the contributions they were made of, so that one rule holds for all: an
update that was counted has a contribution, and one that waits to be is marked.
"""

from __future__ import annotations

import json

import sqlalchemy as sa
from alembic import op

from coordinator.ledger.migrations.column_types import BLOB, FLOAT, INTEGER, TEXT

revision = "v3"
down_revision = "v2"

_OPEN = sa.text("state IN ('open', 'accepted')")


def upgrade() -> None:
    _counting()
    _counted_before()
    _conduct()
    _coordination()
    _protection()
    op.create_index("assignments_of_device", "assignments", ["device", "round", "attempt"])
    # With the state, which SQLite reads again although the index holds these two alone.
    unanswered = ["round", "attempt", "device", "state"]
    op.create_index("assignments_open", "assignments", unanswered, sqlite_where=_OPEN, postgresql_where=_OPEN)
    unfinished = sa.text("state NOT IN ('committed', 'abandoned')")
    op.create_index("rounds_open", "rounds", ["state"], sqlite_where=unfinished, postgresql_where=unfinished)
    op.create_index("assignments_open_of", "assignments", ["device"], sqlite_where=_OPEN, postgresql_where=_OPEN)


def _counting() -> None:
    op.create_table(
        "contributions",
        sa.Column("assignment_id", TEXT, sa.ForeignKey("assignments.assignment_id"), primary_key=True),
        sa.Column("round", INTEGER, nullable=False),
        sa.Column("attempt", INTEGER, nullable=False),
        sa.Column("weight", FLOAT, nullable=False),
        sa.ForeignKeyConstraint(["round", "attempt"], ["rounds.round", "rounds.attempt"]),
        sqlite_strict=True,
    )
    op.create_index("contributions_of_round", "contributions", ["round", "attempt"])
    # 1 while a round may still count the update: neither counted nor quarantined, its attempt not abandoned.
    op.add_column("updates", sa.Column("waits", INTEGER, nullable=False, server_default="1"))
    waits = sa.text("waits = 1")
    op.create_index("updates_waiting", "updates", ["assignment_id"], sqlite_where=waits, postgresql_where=waits)
    op.create_table(
        "earlier_profiles",
        sa.Column("device", TEXT, primary_key=True),
        sa.Column("number", INTEGER, primary_key=True, autoincrement=False),
        sa.Column("profile", BLOB, nullable=False),
        sa.Column("frozen_at", FLOAT, nullable=False),
        sqlite_strict=True,
    )


def _counted_before() -> None:
    """The contributions of rounds that an older release aggregated, each with the weight it has always had."""
    connection = op.get_bind()
    rounds = connection.execute(
        sa.text("SELECT round, attempt, participants FROM rounds WHERE state IN ('aggregating', 'committed')")
    ).all()
    reports = sa.text(
        "SELECT a.assignment_id, a.device, u.report FROM assignments a JOIN updates u USING (assignment_id) "
        "WHERE a.round = :round AND a.attempt = :attempt"
    )
    insert = sa.text("INSERT INTO contributions VALUES (:assignment_id, :round, :attempt, :weight)")
    for round_index, attempt, participants in rounds:
        here = {"round": round_index, "attempt": attempt}
        counted = set(json.loads(participants))
        for assignment_id, device, report in connection.execute(reports, here).all():
            if device in counted:
                weight = float(json.loads(report)["num_examples"])
                connection.execute(insert, {"assignment_id": assignment_id, "weight": weight, **here})
    connection.execute(
        sa.text(
            "UPDATE updates SET waits = 0 WHERE assignment_id IN (SELECT a.assignment_id FROM assignments a "
            "JOIN rounds r USING (round, attempt) WHERE r.state IN ('aggregating', 'committed', 'abandoned'))"
        )
    )


def _conduct() -> None:
    op.create_table(
        "quarantine",
        sa.Column("assignment_id", TEXT, sa.ForeignKey("assignments.assignment_id"), primary_key=True),
        sa.Column("device", TEXT, nullable=False),
        sa.Column("round", INTEGER, nullable=False),
        sa.Column("code", TEXT, nullable=False),
        sa.Column("evidence", BLOB, nullable=False),
        sa.Column("created_at", FLOAT, nullable=False),
        sqlite_strict=True,
    )
    op.create_table(
        "standings",
        sa.Column("device", TEXT, primary_key=True),
        sa.Column("score", FLOAT, nullable=False),
        sa.Column("accepted", INTEGER, nullable=False),
        sa.Column("rejected", INTEGER, nullable=False),
        sa.Column("quarantined", INTEGER, nullable=False),
        sa.Column("barred_until", INTEGER, nullable=False),
        sa.Column("changed_at", FLOAT, nullable=False),
        sqlite_strict=True,
    )
    op.create_table(
        "traffic",
        sa.Column("device", TEXT, primary_key=True),
        sa.Column("direction", TEXT, primary_key=True),
        sa.Column("scheme", TEXT, primary_key=True),
        sa.Column("payload_bytes", INTEGER, nullable=False),
        sa.Column("wire_bytes", INTEGER, nullable=False),
        sqlite_strict=True,
    )


def _coordination() -> None:
    op.create_table(
        "leases",
        sa.Column("name", TEXT, primary_key=True),
        sa.Column("owner", TEXT, nullable=False),
        sa.Column("term", INTEGER, nullable=False),
        sa.Column("expires_at", FLOAT, nullable=False),
        sqlite_strict=True,
    )
    op.create_table(
        "presence",
        sa.Column("device", TEXT, primary_key=True),
        sa.Column("owner", TEXT, nullable=False),
        sa.Column("hello", BLOB, nullable=False),
        sa.Column("heartbeat", BLOB, nullable=False),
        sa.Column("heard_at", FLOAT, nullable=False),
        sa.Column("away_reason", TEXT, nullable=False, server_default=""),
        sqlite_strict=True,
    )
    op.create_table(
        "wishes",
        sa.Column("name", TEXT, primary_key=True),
        sa.Column("value", TEXT, nullable=False),
        sa.Column("set_at", FLOAT, nullable=False),
        sqlite_strict=True,
    )


def _protection() -> None:
    op.create_table(
        "masking",
        sa.Column("round", INTEGER, primary_key=True, autoincrement=False),
        sa.Column("attempt", INTEGER, primary_key=True, autoincrement=False),
        sa.Column("device", TEXT, primary_key=True),
        sa.Column("kind", TEXT, primary_key=True),
        sa.Column("body", BLOB, nullable=False),
        sqlite_strict=True,
    )
    op.create_table(
        "privacy",
        sa.Column("round", INTEGER, primary_key=True, autoincrement=False),
        sa.Column("attempt", INTEGER, primary_key=True, autoincrement=False),
        sa.Column("mechanism", BLOB, nullable=False),
        sa.ForeignKeyConstraint(["round", "attempt"], ["rounds.round", "rounds.attempt"]),
        sqlite_strict=True,
    )
