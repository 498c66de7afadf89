"""The database under a ledger: an SQLite file or a schema of PostgreSQL; writes that are on disk when they return.

The same rules on both: one write at a time per run, whole or not at all, and a reader sees what was committed. What the
tables mean is :mod:`coordinator.ledger.ledger`'s.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from sqlalchemy import Connection, bindparam, text
from sqlalchemy.engine import URL
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.sql import Executable
from sqlalchemy.sql.elements import TextClause

from coordinator.audit_log import actors
from coordinator.ledger.connections import (
    KEPT_CONNECTIONS,
    LedgerAway,
    kind_of,
    namespace_of,
    next_step,
    postgresql_engine,
    read_address,
    reason_of,
    sqlite_engine,
    was_idle,
)
from coordinator.ledger.schema import check_version, migrate, version_of
from edge.contracts.errors import LeaseLost, LedgerError

_ONE_WRITER = text("SELECT pg_advisory_xact_lock(hashtextextended(:name, 0))")

_SQLITE_CLOCK = "((julianday('now') - 2440587.5) * 86400.0)"
_POSTGRESQL_CLOCK = "CAST(EXTRACT(EPOCH FROM clock_timestamp()) AS double precision)"
"""Not ``now()``: that is when the transaction began, before it waited for the other coordinator's."""


@functools.lru_cache(maxsize=512)
def statement(sql: str, *lists: str) -> TextClause:
    """``sql`` with its ``:named`` parameters, prepared once; ``lists`` names those of ``IN :name``."""
    return text(sql).bindparams(*(bindparam(name, expanding=True) for name in lists))


def in_groups(values: Sequence[str], size: int = 500) -> Iterator[Sequence[str]]:
    """``values`` in order, in groups that fit one statement."""
    return (values[start : start + size] for start in range(0, len(values), size))


def storable(words: str) -> str:
    """What a device said, without the one character that PostgreSQL stores in no text."""
    return words.replace("\0", "\ufffd")


class NoLedger(LedgerError):
    """A database that answers and has no ledger of that name."""


FirstRow = Callable[[Connection, str], None]


class Fence(msgspec.Struct, frozen=True, kw_only=True):
    """The lease without which nothing is written."""

    name: str
    owner: str
    term: int


class LedgerFile:
    """An open ledger at the schema version of this release.

    Args:
        where: an SQLite file, or a ``postgresql://`` address.
        federation: names the PostgreSQL schema; unused for a file.
        first: writes a new run's first row, given :attr:`where`, in the transaction that makes the tables: neither is
            there without the other. None: tables that are not there are an error.
        is_durable: False: a file's writes do not wait for the disk.

    Attributes:
        where: the file or address for messages, without a password.
        clock: SQL for the database's own time, seconds since the epoch.
        fence: the lease that every write asks for; None: no write does.
        plans: None, or, where every plan is made through this object, how many were: what can be known without a look.
        actor: whose doing a write is, in the audit log; the operator's until a coordinator says that it is its own.

    Raises:
        LedgerError: it cannot be opened, is not a ledger, or was written by a newer release.
    """

    def __init__(
        self,
        where: Path | str,
        federation: str = "",
        *,
        first: FirstRow | None = None,
        is_durable: bool = True,
    ) -> None:
        self._lock = threading.RLock()
        self._is_writing = False
        self._is_closed = False
        self._failure = ""
        self._is_durable = is_durable
        self.is_sqlite = isinstance(where, Path)
        url = URL.create("sqlite+pysqlite", database=str(where)) if isinstance(where, Path) else read_address(where)
        self.where = str(where) if isinstance(where, Path) else url.render_as_string(hide_password=True)
        self.namespace = "" if self.is_sqlite else namespace_of(federation)
        self.clock = _SQLITE_CLOCK if self.is_sqlite else _POSTGRESQL_CLOCK
        self.fence: Fence | None = None
        self.plans: int | None = None
        self.actor = actors.operator()
        self._engine = (
            sqlite_engine(url, is_durable=is_durable) if self.is_sqlite else postgresql_engine(url, self.namespace)
        )
        # One statement sees one state on both; a file's connections begin nothing by themselves.
        self._reads = self._engine if self.is_sqlite else self._engine.execution_options(isolation_level="AUTOCOMMIT")
        try:
            self._bring_up_to_date(first)
            if self.is_sqlite:
                self._open_kept_connections()
        except (SQLAlchemyError, ImportError) as error:
            self._engine.dispose()
            raise kind_of(error)(
                f"{self.where}: ledger cannot be opened ({reason_of(error)}); check it or start a new run"
            ) from error
        except LedgerError:
            self._engine.dispose()
            raise

    def _bring_up_to_date(self, first: FirstRow | None) -> None:
        with self._reads.connect() as connection:
            version = version_of(connection)
            if self.is_sqlite and self._is_durable and version:
                # What an earlier process left in the log, not synced perhaps, is written anew to the file and synced.
                connection.exec_driver_sql("PRAGMA wal_checkpoint(PASSIVE)").all()
        is_current = check_version(version, where=self.where)
        if first is None and is_current:
            return
        if first is None and not version:
            raise NoLedger(f"{self.where}: no ledger of that name here; name another, or start the run")
        with self._write() as connection:
            if not self.is_sqlite:
                connection.execute(text(f'CREATE SCHEMA IF NOT EXISTS "{self.namespace}"'))
            migrate(connection, where=self.where)
            if first is not None:
                first(connection, self.where)

    def _open_kept_connections(self) -> None:
        """Now, not when two threads first meet: the files that a coordinator has open do not grow while it runs."""
        with contextlib.ExitStack() as stack:
            for _ in range(KEPT_CONNECTIONS):
                stack.enter_context(self._engine.connect())

    def close(self) -> None:
        """Closes the connections; the ledger cannot be used afterwards."""
        with self._lock:
            self._is_closed = True
            self._engine.dispose()

    @contextmanager
    def transaction(self, *, is_fenced: bool = True) -> Iterator[Connection]:
        """A write that happens whole, on disk when the block ends, or not at all when it raises.

        Args:
            is_fenced: False writes without the lease, for what concerns leases themselves.

        Raises:
            LedgerError: it could not be written, or a write of this thread is under way already.
            LedgerAway: the connection was lost; where the message says so it may have been written all the same.
            LeaseLost: the lease of :attr:`fence` is not held.
        """
        with self._lock:
            if self._is_writing:
                raise LedgerError(f"{self.where}: a write within a write; end the first one before the next")
            self._is_writing, is_committing = True, False
            try:
                self._check_open()
                with self._write() as connection:
                    if is_fenced and self.fence is not None:
                        self._check_fence(connection, self.fence)
                    yield connection
                    is_committing = True
            except SQLAlchemyError as error:
                if is_committing and kind_of(error) is LedgerAway and not was_idle(error):
                    raise LedgerAway(
                        f"{self.where}: the answer to COMMIT was lost ({reason_of(error)}); what was written is there "
                        "or it is not, whole: whoever resumes reads which"
                    ) from error
                if self.is_sqlite and "disk I/O error" in reason_of(error):
                    self._failure = reason_of(error)
                raise kind_of(error)(
                    f"{self.where}: not written ({reason_of(error)}); nothing changed{next_step(error)}"
                ) from error
            finally:
                self._is_writing = False

    @contextmanager
    def _write(self) -> Iterator[Connection]:
        """The only writer of this run: what it has read cannot change under it, and nothing has to be repeated."""
        with self._engine.begin() as connection:
            if self.is_sqlite:
                connection.exec_driver_sql("BEGIN IMMEDIATE")
            else:
                connection.execute(_ONE_WRITER, {"name": self.namespace})
            yield connection

    def _check_fence(self, connection: Connection, fence: Fence) -> None:
        # In the transaction of the write: no other coordinator can take the lease between this answer and the commit.
        held = connection.execute(
            statement(
                "SELECT 1 FROM leases "
                f"WHERE name = :name AND owner = :owner AND term = :term AND expires_at > {self.clock}"
            ),
            {"name": fence.name, "owner": fence.owner, "term": fence.term},
        )
        if held.first() is None:
            raise LeaseLost(
                f"{self.where}: lease '{fence.name}' of {fence.owner}, term {fence.term}, is no longer held; "
                "nothing was written, another coordinator may go on with the work"
            )

    def all(self, query: Executable | str, values: Mapping[str, Any] | None = None) -> list[Any]:
        """Every row of a query, outside any transaction.

        Raises:
            LedgerError: it could not be read.
        """
        self._check_open()
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

    def count_plan(self) -> None:
        """Assignments were made."""
        if self.plans is not None:
            self.plans += 1

    def _check_open(self) -> None:
        if self._is_closed:
            raise LedgerError(f"{self.where}: the ledger was closed; open it again")
        if self._failure:
            # What the kernel made of a sync that failed cannot be known: the next one could call it a success.
            raise LedgerError(
                f"{self.where}: nothing is written any more after its disk failed ({self._failure}); see to the disk, "
                "then resume"
            )


class LedgerPart:
    """Some of a ledger's tables; :class:`~coordinator.ledger.ledger.Ledger` is all of them on one file."""

    def __init__(self, file: LedgerFile) -> None:
        self._file = file
