"""Which version a ledger's tables are of, and bringing them to this release's.

The steps are alembic's, in :mod:`coordinator.ledger.migrations`: one file per version, never edited afterwards. Alembic
is loaded only where there is a step to take.
"""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Connection, inspect, text

from edge.contracts.errors import LedgerError

VERSION = 6
"""Of the tables this release reads and writes; revision ``v6`` is the last of :mod:`coordinator.ledger.migrations`."""

_FIRST_WITH_ALEMBIC = 3
"""Older files say their version in ``PRAGMA user_version`` alone."""


def version_of(connection: Connection) -> int:
    """The version of the tables that ``connection`` sees; 0 where there are none."""
    if connection.dialect.name == "sqlite":
        # It stands in the file's header, so that an old release refuses a newer file by the rule it has always had.
        return int(connection.execute(text("PRAGMA user_version")).scalar_one())
    if not inspect(connection).has_table("alembic_version"):
        return 0
    revision = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
    return 0 if revision is None else int(str(revision).removeprefix("v"))


def check_version(version: int, *, where: str) -> bool:
    """Whether tables of ``version`` are this release's; False: they have to be migrated.

    Raises:
        LedgerError: a newer release made them.
    """
    if version > VERSION:
        raise LedgerError(
            f"{where}: ledger is of version {version}, this release reads up to {VERSION}; upgrade apportion"
        )
    return version == VERSION


def migrate(connection: Connection, *, where: str) -> None:
    """Brings the tables to this release's version, inside the caller's transaction: all steps or none.

    Raises:
        LedgerError: a newer release made them.
    """
    version = version_of(connection)
    if check_version(version, where=where):
        return
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).with_name("migrations")).replace("%", "%%"))
    config.attributes["connection"] = connection
    if 0 < version < _FIRST_WITH_ALEMBIC:
        command.stamp(config, f"v{version}")
    command.upgrade(config, f"v{VERSION}")
    if connection.dialect.name == "sqlite":
        connection.execute(text(f"PRAGMA user_version = {VERSION}"))
