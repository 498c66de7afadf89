"""One SQLite file: a connection shared under a lock, transactions that are on disk when they return."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from coordinator.ledger_schema import migrate
from edge.contracts.errors import LedgerError


class LedgerFile:
    """An open ledger file at the schema version of this release.

    Raises:
        LedgerError: it cannot be opened, is not a ledger, or was written by a newer release.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.RLock()
        try:
            self._connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None, timeout=30.0)
            self._connection.execute("PRAGMA journal_mode = WAL")
            # FULL, not the usual NORMAL of WAL mode: an acknowledged update may not vanish with a power cut.
            self._connection.execute("PRAGMA synchronous = FULL")
            self._connection.execute("PRAGMA foreign_keys = ON")
            migrate(self._connection, where=str(path))
        except sqlite3.Error as error:
            raise LedgerError(
                f"{path}: ledger cannot be opened ({error}); check the file or start a new run"
            ) from error

    def close(self) -> None:
        """Closes the file."""
        with self._lock:
            self._connection.close()

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """A write that happens whole, on disk when the block ends, or not at all when it raises."""
        with self._lock:
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                try:
                    yield self._connection
                    self._connection.execute("COMMIT")
                except BaseException:
                    # An interrupt may arrive when the commit is done and before it returns.
                    if self._connection.in_transaction:
                        self._connection.execute("ROLLBACK")
                    raise
            except sqlite3.Error as error:
                raise LedgerError(f"{self.path}: not written ({error}); nothing changed") from error

    def all(self, sql: str, values: Sequence[Any] = ()) -> list[Any]:
        """Every row of a query."""
        with self._lock:
            try:
                return self._connection.execute(sql, values).fetchall()
            except sqlite3.Error as error:
                raise LedgerError(f"{self.path}: cannot be read ({error}); check the disk") from error

    def one(self, sql: str, values: Sequence[Any] = ()) -> Any:
        """The first row of a query, or None."""
        rows = self.all(sql, values)
        return rows[0] if rows else None
