"""Version 5: a run has an audit log. Runs of older releases begin theirs here."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from coordinator.audit_log import actors
from coordinator.audit_log.chain import appended
from coordinator.audit_log.entry import Event
from coordinator.ledger.migrations.column_types import BLOB, INTEGER, TEXT

revision = "v5"
down_revision = "v4"


def upgrade() -> None:
    op.create_table(
        "audit_log",
        sa.Column("number", INTEGER, primary_key=True, autoincrement=False),
        sa.Column("at_ms", INTEGER, nullable=False),
        sa.Column("actor", TEXT, nullable=False),
        sa.Column("action", TEXT, nullable=False),
        sa.Column("subject", TEXT, nullable=False),
        sa.Column("details", BLOB, nullable=False),
        sa.Column("previous", TEXT, nullable=False),
        sa.Column("digest", TEXT, nullable=False),
        sqlite_strict=True,
    )
    connection = op.get_bind()
    run = connection.execute(sa.text("SELECT id, nonce, config_digest FROM federation")).first()
    if run is None:
        return
    details = {"config_digest": run[2], "nonce": run[1]}
    event = Event(actor=actors.operator(), action="log-begun", subject=f"run:{run[0]}", details=details)
    (entry,) = appended([event], None)
    connection.execute(
        sa.text(
            "INSERT INTO audit_log VALUES (:number, :at_ms, :actor, :action, :subject, :details, :previous, :digest)"
        ),
        {name: getattr(entry, name) for name in entry.__struct_fields__} | {"details": bytes(entry.details)},
    )
