"""A PostgreSQL server of one run, ended in the middle of it as by a power cut."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from pathlib import Path

from tests.postgres_server import PostgresServer


class Database:
    """A running server with an empty database.

    Attributes:
        address: of the database, as ``[store] ledger`` takes it.
    """

    def __init__(self) -> None:
        # Not in the run's folder, which the account of the server may not enter.
        self._folder = Path(tempfile.mkdtemp(prefix="apportion-chaos-postgres-"))
        self._server = PostgresServer(self._folder)
        self._server.start()
        self.address = self._server.new_database()
        self.is_away = False

    async def restart(self, seconds: float) -> None:
        """End it at once, nothing is written any more, and start it again after ``seconds``."""
        self.is_away = True
        await asyncio.to_thread(self._server.kill)
        await asyncio.sleep(seconds)
        await asyncio.to_thread(self._server.start)
        self.is_away = False

    def close(self) -> None:
        """End it for good; its folder is removed."""
        self._server.kill()
        shutil.rmtree(self._folder, ignore_errors=True)
