"""The ledger: the only truth about a run, in one database that survives a kill at any instruction.

Every method is one transaction: it has happened on disk when it returns, or not at all. Bytes live in
:mod:`coordinator.blob_store`; a blob is on disk before its row is written here, and a row before anyone is told.
Deciding what to do next is :mod:`coordinator.round`'s.
"""

from __future__ import annotations

import hashlib
import time
from pathlib import Path

from coordinator.inventory import Inventory
from coordinator.ledger_assignments import AssignmentTables
from coordinator.ledger_audit import AuditTables
from coordinator.ledger_conduct import ConductTables
from coordinator.ledger_control import ControlTables
from coordinator.ledger_file import LedgerFile, NoLedger, statement
from coordinator.ledger_leases import LeaseTables
from coordinator.ledger_profiles import ProfileTables
from coordinator.ledger_protection import ProtectionTables
from coordinator.ledger_records import FEDERATION_MOVES, Federation, FederationState, check_move
from coordinator.ledger_repair import RepairTables
from coordinator.ledger_rounds import RoundTables
from coordinator.ledger_traffic import TrafficTables
from coordinator.ledger_updates import UpdateTables
from edge.contracts.errors import LedgerError


class Ledger(
    Inventory,
    AuditTables,
    RoundTables,
    AssignmentTables,
    UpdateTables,
    ConductTables,
    ControlTables,
    LeaseTables,
    ProfileTables,
    ProtectionTables,
    RepairTables,
    TrafficTables,
):
    """One run's ledger, shared by threads. Use :meth:`create` for a new run and :meth:`open` for one that exists.

    Attributes:
        path: the file, or the address of the PostgreSQL database with its password.
    """

    def __init__(self, where: Path | str, federation: str = "", *, is_new: bool = False) -> None:
        super().__init__(LedgerFile(where, federation, is_new=is_new))
        self.path = where

    @classmethod
    def create(cls, where: Path | str, *, federation: str, config: str, seed: int) -> Ledger:
        """A ledger for a new run.

        Args:
            where: an SQLite file, or ``postgresql://`` and the rest of a database's address.

        Raises:
            LedgerError: there is a run of that name at ``where`` already.
        """
        ledger = cls(where, federation, is_new=True)
        try:
            ledger._begin(federation, config, seed)
        except LedgerError:
            ledger.close()
            raise
        return ledger

    def _begin(self, federation: str, config: str, seed: int) -> None:
        digest = hashlib.sha256(config.encode()).hexdigest()
        with self._file.transaction() as sql:
            if sql.execute(statement("SELECT 1 FROM federation")).first():
                raise LedgerError(
                    f"{self._file.where}: there is a run here already; resume it or choose another directory"
                )
            sql.execute(
                statement("INSERT INTO federation VALUES (:id, :config, :digest, :seed, :now, 'new')"),
                {"id": federation, "config": config, "digest": digest, "seed": seed, "now": time.time()},
            )

    @classmethod
    def exists(cls, where: Path | str, *, federation: str) -> bool:
        """Whether a run was begun at ``where``.

        Raises:
            LedgerError: the database does not answer, or is none that this release reads.
        """
        if isinstance(where, Path):
            return where.is_file()
        try:
            cls.open(where, federation=federation).close()
        except NoLedger:
            return False
        return True

    @classmethod
    def open(cls, where: Path | str, *, federation: str = "") -> Ledger:
        """The ledger of an existing run.

        Args:
            federation: needed with an address only, where each run of a database has a name.

        Raises:
            LedgerError: none there, or none that this release reads.
        """
        if isinstance(where, Path) and not where.is_file():
            raise LedgerError(f"{where}: no ledger here; give the directory of a run")
        ledger = cls(where, federation)
        try:
            ledger.federation()
        except LedgerError:
            ledger.close()
            raise
        return ledger

    def close(self) -> None:
        """Closes the database; the ledger cannot be used afterwards."""
        self._file.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def federation(self) -> Federation:
        """The run this ledger belongs to."""
        row = self._file.one("SELECT id, config, config_digest, seed, created_at, state FROM federation")
        if row is None:
            raise NoLedger(f"{self._file.where}: ledger holds no run; start one")
        return Federation(id=row[0], config=row[1], config_digest=row[2], seed=row[3], created_at=row[4], state=row[5])

    def move_federation(self, to: FederationState) -> None:
        """Moves the run to state ``to``."""
        with self._file.transaction() as sql:
            now = sql.execute(statement("SELECT state FROM federation")).scalar_one()
            check_move(FEDERATION_MOVES, now, to, what=f"{self._file.where}: run")
            sql.execute(statement("UPDATE federation SET state = :to"), {"to": to})
