"""A private PostgreSQL server for tests: its own folder, a free loopback port, ended with the test run.

It syncs to disk as a real one does. Where none can be started, :func:`missing_postgres` says why.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import psycopg

START_S = 60.0
USER = "apportion"
_FOLDERS = (*sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True), Path("/usr/local/pgsql/bin"))


def programs() -> Path | None:
    """The folder with ``initdb`` and ``postgres``, or None."""
    found = shutil.which("initdb")
    folders = (Path(found).resolve().parent, *_FOLDERS) if found else _FOLDERS
    return next((f for f in folders if (f / "initdb").exists() and (f / "postgres").exists()), None)


def missing_postgres() -> str:
    """Why no server can be started here; empty when one can."""
    if programs() is None:
        return "no PostgreSQL server here (Debian: postgresql)"
    if os.geteuid() == 0 and _account() is None:
        return "PostgreSQL does not start as root, and there is no account 'postgres'"
    return ""


def _account() -> pwd.struct_passwd | None:
    with contextlib.suppress(KeyError):
        return pwd.getpwnam("postgres")
    return None


class PostgresServer:
    """A running server; :meth:`kill` and :meth:`start` again for a crash and a recovery."""

    def __init__(self, folder: Path) -> None:
        found = programs()
        assert found is not None
        self._programs = found
        self._account = _account() if os.geteuid() == 0 else None
        self._data = folder / "data"
        self._log = folder / "server.log"
        self._process: subprocess.Popen[bytes] | None = None
        self.port = _free_port()
        if self._account is not None:
            os.chown(folder, self._account.pw_uid, self._account.pw_gid)
        made = self._run("initdb", "--no-sync", "-A", "trust", "-U", USER, "-E", "UTF8", "--locale", "C.UTF-8")
        done = subprocess.run(**made, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"initdb ended with {done.returncode}: {done.stdout[-2000:]}")

    def _run(self, program: str, *arguments: str) -> dict[str, object]:
        values: dict[str, object] = {"args": [str(self._programs / program), "-D", str(self._data), *arguments]}
        if self._account is not None:
            values |= {"user": self._account.pw_uid, "group": self._account.pw_gid, "extra_groups": []}
        return values | {"cwd": self._data.parent}

    def start(self) -> None:
        """Start the server and wait until it answers."""
        arguments = ["-p", str(self.port), "-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories="]
        small = ["-c", "shared_buffers=32MB", "-c", "max_connections=60", "-c", "fsync=on"]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(**self._run("postgres", *arguments, *small), stdout=log, stderr=log)  # type: ignore[call-overload]
        deadline = time.monotonic() + START_S
        while True:
            try:
                psycopg.connect(self.address("postgres"), connect_timeout=2).close()
                return
            except psycopg.OperationalError:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"no PostgreSQL server: {self._log.read_text()[-2000:]}") from None
                time.sleep(0.05)

    def stop(self) -> None:
        """End it in order, without waiting for its clients."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """End it at once, as a power cut would: nothing is written any more."""
        self._end(signal.SIGQUIT)

    def _end(self, how: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(30.0)
            self._process = None

    def address(self, database: str) -> str:
        """Of ``database``, as ``[store] ledger`` takes it."""
        return f"postgresql://{USER}@127.0.0.1:{self.port}/{database}"

    def new_database(self) -> str:
        """The address of an empty database of its own."""
        name = f"test_{uuid.uuid4().hex[:12]}"
        self.execute(f"CREATE DATABASE {name}")
        return self.address(name)

    def emptied_database(self) -> str:
        """The address of a database that is shared by tests, one after another; empty again."""
        if not self.execute("SELECT 1 FROM pg_database WHERE datname = 'shared'"):
            self.execute("CREATE DATABASE shared")
        with psycopg.connect(self.address("shared"), autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            query = r"SELECT quote_ident(nspname) FROM pg_namespace WHERE nspname LIKE 'apportion\_%'"
            for (schema,) in connection.execute(query).fetchall():
                connection.execute(f"DROP SCHEMA {schema} CASCADE".encode())
        return self.address("shared")

    def execute(self, sql: str) -> list[tuple[object, ...]]:
        """The rows of a statement, outside any transaction."""
        with psycopg.connect(self.address("postgres"), autocommit=True) as connection:
            cursor = connection.execute(sql.encode())
            return list(cursor.fetchall()) if cursor.description else []


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def running_server() -> Iterator[PostgresServer]:
    """A server for the length of the block; its folder is removed afterwards."""
    # Not below pytest's folder, which the account of the server may not enter.
    with tempfile.TemporaryDirectory(prefix="apportion-postgres-") as folder:
        server = PostgresServer(Path(folder))
        server.start()
        try:
            yield server
        finally:
            server.kill()
