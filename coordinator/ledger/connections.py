"""How the database under a ledger is reached: an SQLite file or a schema of PostgreSQL, and what their errors mean."""

from __future__ import annotations

import hashlib
import re
from typing import Any

from sqlalchemy import Engine, create_engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, OperationalError, SQLAlchemyError

from edge.contracts.errors import LedgerError

BUSY_S = 30.0
"""How long a write waits for the write of another process before it gives up."""

PAUSED_S = 10
"""PostgreSQL ends a transaction whose coordinator stood still this long, so that another one can go on."""

UNREACHABLE_S = 20.0
"""How long bytes to PostgreSQL may stay unacknowledged, by the server's machine and not by its programs."""

KEPT_CONNECTIONS = 5
"""Of a file, open from the start. SQLite keeps a closed one's file open while another has it locked."""

_LONGEST_NAME = 63
_PREFIX = "apportion_"
_PLAIN_NAME = re.compile(r"[A-Za-z0-9._-]+")
_NOT_PLAIN = re.compile(r"[^A-Za-z0-9._-]")


def namespace_of(federation: str) -> str:
    """The PostgreSQL schema that holds the ledger of ``federation``; another one for every name."""
    name = _PREFIX + federation
    if _PLAIN_NAME.fullmatch(federation) and len(name) <= _LONGEST_NAME:
        return name
    digest = hashlib.sha256(federation.encode()).hexdigest()[:16]
    return f"{_NOT_PLAIN.sub('_', name)[: _LONGEST_NAME - 17]}_{digest}"


class LedgerAway(LedgerError):
    """The server of the ledger does not answer; it may do so later."""


def read_address(where: str) -> URL:
    """The address of a PostgreSQL database, for the driver this project uses.

    Raises:
        LedgerError: it is none. Its password is not repeated.
    """
    try:
        url = make_url(where)
    except ArgumentError as error:
        raise LedgerError("the ledger's address cannot be read; give postgresql://user@host/database") from error
    if url.drivername not in ("postgresql", "postgresql+psycopg"):
        raise LedgerError(
            f"no ledger can be kept in '{url.drivername}'; give a file or postgresql://user@host/database"
        )
    return url.set(drivername="postgresql+psycopg")


def sqlite_engine(url: URL, *, is_durable: bool) -> Engine:
    """Connections to a file, each as this ledger needs it; without ``is_durable`` no write waits for the disk."""
    engine = create_engine(url, connect_args={"timeout": BUSY_S}, pool_size=KEPT_CONNECTIONS)

    @event.listens_for(engine, "connect")
    def configure(connection: Any, _: Any) -> None:
        # BEGIN is ours: the driver's own would come late, and as one that may not be able to write in the end.
        connection.isolation_level = None
        connection.execute("PRAGMA journal_mode = WAL")
        # FULL, not the usual NORMAL of WAL mode: an acknowledged update may not vanish with a power cut.
        connection.execute(f"PRAGMA synchronous = {'FULL' if is_durable else 'OFF'}")
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA secure_delete = ON")  # seeds of noise and shares of masks are to be gone

    return engine


def postgresql_engine(url: URL, namespace: str, *, is_read_only: bool = False) -> Engine:
    """Connections to the schema ``namespace`` of a server that may go away; a read-only one refuses every write."""
    given = url.query.get("options", "")
    options = [
        *([given] if isinstance(given, str) else given),
        f'-c search_path="{namespace}"',
        "-c synchronous_commit=on",
        f"-c lock_timeout={BUSY_S:.0f}s",
        f"-c idle_in_transaction_session_timeout={PAUSED_S}s",
        *(["-c default_transaction_read_only=on"] if is_read_only else []),
    ]
    return create_engine(
        url,
        pool_pre_ping=True,
        connect_args={
            "options": " ".join(options).strip(),
            "application_name": "apportion",
            "connect_timeout": 10,
            # A network that swallows everything is an error then, not after the system's quarter of an hour.
            "tcp_user_timeout": int(UNREACHABLE_S * 1000),
            "keepalives_idle": 5,
            "keepalives_interval": 5,
        },
    )


def reason_of(error: Exception) -> str:
    """The driver's own words; SQLAlchemy adds the statement and its values, which may hold what no log should."""
    cause = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    return " ".join(str(cause).split())


def kind_of(error: Exception) -> type[LedgerError]:
    """A connection that was cut, or could not be made: then the server's answer has no code."""
    if not isinstance(error, DBAPIError):
        return LedgerError
    is_refused = getattr(error.orig, "sqlstate", "") is None and isinstance(error, OperationalError)
    return LedgerAway if error.connection_invalidated or is_refused else LedgerError


def was_idle(error: SQLAlchemyError) -> bool:
    """Whether the server ended the connection, and undid its writes, since nothing came: COMMIT did not either."""
    cause = error.orig if isinstance(error, DBAPIError) else None
    return getattr(cause, "sqlstate", None) == "25P03" or "idle-in-transaction timeout" in str(cause)


def next_step(error: SQLAlchemyError) -> str:
    """What to do about ``error``, as the end of a message; empty where nothing can be said."""
    cause = error.orig if isinstance(error, DBAPIError) else None
    is_full = "disk is full" in str(cause) or getattr(cause, "sqlstate", None) == "53100"
    return "; free disk space, then resume" if is_full else ""
