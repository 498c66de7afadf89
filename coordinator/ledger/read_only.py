"""A ledger for those who only look: connections that cannot write, beside the coordinator that does.

Nothing is migrated, checkpointed or locked here. A file is opened read-only, a server's transactions are read-only.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import QueuePool
from sqlalchemy.sql import Executable

from coordinator.ledger.connections import BUSY_S, kind_of, namespace_of, postgresql_engine, read_address, reason_of
from coordinator.ledger.database import NoLedger, statement
from coordinator.ledger.schema import check_version, version_of
from edge.contracts.errors import LedgerError


class OlderLedger(LedgerError):
    """A ledger whose tables an older release made; they have to be migrated before they are read."""


class ReadOnlyLedger:
    """The tables of one run, to be read by any number of threads.

    Args:
        where: an SQLite file, or a ``postgresql://`` address.
        federation: names the PostgreSQL schema; unused for a file.

    Attributes:
        where: the file or address for messages, without a password.

    Raises:
        NoLedger: none there.
        OlderLedger: an older release made it, and nothing has migrated it yet.
        LedgerError: it cannot be opened, or a newer release wrote it.
    """

    def __init__(self, where: Path | str, federation: str = "") -> None:
        self._is_sqlite = isinstance(where, Path)
        self._marking = threading.Lock()
        self._mark: Connection | None = None
        if isinstance(where, Path):
            if not where.is_file():
                raise NoLedger(f"{where}: no ledger here; give the directory of a run")
            self.where = str(where)
            self._engine = _sqlite_engine(where)
        else:
            url = read_address(where)
            self.where = url.render_as_string(hide_password=True)
            self._engine = postgresql_engine(url, namespace_of(federation), is_read_only=True)
        self._reads = self._engine.execution_options(isolation_level="AUTOCOMMIT")
        try:
            with self._reads.connect() as connection:
                version = version_of(connection)
        except SQLAlchemyError as error:
            self._engine.dispose()
            raise kind_of(error)(f"{self.where}: ledger cannot be read ({reason_of(error)}); check it") from error
        try:
            if not version:
                raise NoLedger(f"{self.where}: no ledger of that name here; name another, or start the run")
            if not check_version(version, where=self.where):
                raise OlderLedger(f"{self.where}: ledger is of version {version}; open it once to bring it up to date")
        except LedgerError:
            self._engine.dispose()
            raise

    def marker(self) -> object:
        """Another value whenever something may have been written since it was asked last."""
        if not self._is_sqlite:
            return time.monotonic()
        with self._marking:
            if self._mark is None:
                self._mark = self._engine.connect()  # SQLite counts the writes of others for each connection
            return self._mark.exec_driver_sql("PRAGMA data_version").scalar_one()

    def close(self) -> None:
        """Closes the connections."""
        with self._marking:
            if self._mark is not None:
                self._mark.close()
        self._engine.dispose()

    def all(self, query: Executable | str, values: Mapping[str, Any] | None = None) -> list[Any]:
        """Every row of a query.

        Raises:
            LedgerError: it could not be read.
        """
        executable = statement(query) if isinstance(query, str) else query
        try:
            with self._reads.connect() as connection:
                return list(connection.execute(executable, dict(values or {})).fetchall())
        except SQLAlchemyError as error:
            raise kind_of(error)(
                f"{self.where}: cannot be read ({reason_of(error)}); check the disk or server"
            ) from error

    def one(self, query: Executable | str, values: Mapping[str, Any] | None = None) -> Any:
        """The first row of a query, or None."""
        rows = self.all(query, values)
        return rows[0] if rows else None


def _sqlite_engine(file: Path) -> Engine:
    # mode=ro, not immutable: a coordinator may be writing, and its write-ahead log has what is newest.
    address = f"sqlite+pysqlite:///{file.resolve().as_uri()}?mode=ro&uri=true"
    return create_engine(address, connect_args={"timeout": BUSY_S}, poolclass=QueuePool, pool_size=4, max_overflow=4)
