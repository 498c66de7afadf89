"""The ledger: the only truth about a run, in one database that survives a kill at any instruction.

A ledger has parts, one per group of tables: ``ledger.rounds.plan(...)``. Every method is one transaction, whichever
parts' tables it writes: it has happened on disk when it returns, or not at all. Bytes live in
:mod:`coordinator.blobs.blob_store`; a blob is on disk before its row is written here, and a row before anyone is told.
Deciding what to do next is :mod:`coordinator.rounds.round`'s.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from functools import cached_property
from pathlib import Path

from sqlalchemy import Connection

from coordinator.audit_log import actors
from coordinator.audit_log.entry import Event
from coordinator.ledger.assignments import Assignments
from coordinator.ledger.audit import Audit
from coordinator.ledger.audit_log import AuditLog, append
from coordinator.ledger.blobs import Artifacts, Blobs
from coordinator.ledger.coordination import Leases, Presences, Requests
from coordinator.ledger.database import FirstRow, LedgerFile, NoLedger, statement
from coordinator.ledger.measurements import Measurements
from coordinator.ledger.privacy import Masking, Privacy
from coordinator.ledger.profiles import Profiles
from coordinator.ledger.quarantine import Quarantine, Reliabilities
from coordinator.ledger.records import FEDERATION_MOVES, Federation, FederationState, check_move, from_row
from coordinator.ledger.rounds import Rounds
from coordinator.ledger.traffic import TrafficSums
from coordinator.ledger.updates import Updates
from edge.contracts.errors import LedgerError


class Ledger:
    """One run's ledger, shared by threads. Use :meth:`create` for a new run and :meth:`open` for one that exists.

    Attributes:
        path: the file, or the address of the PostgreSQL database with its password.
        rounds, assignments, updates: what is trained, by whom, and what came back; the other attributes are parts too.
    """

    def __init__(
        self,
        where: Path | str,
        federation: str = "",
        *,
        first: FirstRow | None = None,
        is_durable: bool = True,
    ) -> None:
        self.path = where
        self._file = file = LedgerFile(where, federation, first=first, is_durable=is_durable)
        self.rounds = Rounds(file)
        self.assignments = Assignments(file)
        self.updates = Updates(file)
        self.quarantine = Quarantine(file)
        self.reliabilities = Reliabilities(file)
        self.privacy = Privacy(file)
        self.masking = Masking(file)
        self.traffic = TrafficSums(file)
        self.profiles = Profiles(file)
        self.measurements = Measurements(file)
        self.artifacts = Artifacts(file)
        self.blobs = Blobs(file)
        self.leases = Leases(file)
        self.presences = Presences(file)
        self.requests = Requests(file)
        self.audit = Audit(file)
        self.audit_log = AuditLog(file)

    @classmethod
    def create(cls, where: Path | str, *, federation: str, config: str, seed: int, is_durable: bool = True) -> Ledger:
        """A ledger for a new run.

        Args:
            where: an SQLite file, or ``postgresql://`` and the rest of a database's address.
            is_durable: False for a file that is needed no longer than this process: nothing waits for the disk.

        Raises:
            LedgerError: there is a run of that name at ``where`` already.
        """
        return cls(
            where,
            federation,
            first=lambda sql, at: _begin(sql, at, federation=federation, config=config, seed=seed),
            is_durable=is_durable,
        )

    @classmethod
    def exists(cls, where: Path | str, *, federation: str) -> bool:
        """Whether a run was begun at ``where``: a file, or tables, that a killed process left without one do not count.

        Raises:
            LedgerError: the database does not answer, or is none that this release reads.
        """
        if isinstance(where, Path) and not where.is_file():
            return False
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
        row = self._file.one("SELECT id, config, config_digest, seed, created_at, state, nonce FROM federation")
        if row is None:
            raise NoLedger(f"{self._file.where}: ledger holds no run; start one")
        return from_row(Federation, row)

    @cached_property
    def nonce(self) -> str:
        """The run's: nothing that was derived for another run of the same name means anything in this one."""
        return self.federation().nonce

    def led_by(self, process: str = "") -> None:
        """From now on a coordinator's process writes here: the run begins with it, or goes on.

        Args:
            process: its name; that of this process unless another is given.
        """
        self.audit_log.act_as(actors.coordinator(process))
        self._file.plans = 0
        run = self.federation()
        if run.state == "new":
            self.move_federation("running")
        elif run.state == "running":
            self.audit_log.add("run-resumed", f"run:{run.id}")

    def move_federation(self, to: FederationState) -> None:
        """Moves the run to state ``to``."""
        with self._file.transaction() as sql:
            now = sql.execute(statement("SELECT state FROM federation")).scalar_one()
            check_move(FEDERATION_MOVES, now, to, what=f"{self._file.where}: run")
            sql.execute(statement("UPDATE federation SET state = :to"), {"to": to})
            if to == "finished":
                name = sql.execute(statement("SELECT id FROM federation")).scalar_one()
                append(sql, Event(actor=self._file.actor, action="run-ended", subject=f"run:{name}"))


def _begin(sql: Connection, where: str, *, federation: str, config: str, seed: int) -> None:
    """The first row of a run, in the transaction of its tables."""
    if sql.execute(statement("SELECT 1 FROM federation")).first():
        raise LedgerError(f"{where}: there is a run here already; resume it or choose another directory")
    digest, nonce = hashlib.sha256(config.encode()).hexdigest(), secrets.token_hex(16)
    sql.execute(
        statement("INSERT INTO federation VALUES (:id, :config, :digest, :seed, :now, 'new', :nonce)"),
        {
            "id": federation,
            "config": config,
            "digest": digest,
            "seed": seed,
            "now": time.time(),
            "nonce": nonce,
        },
    )
    details = {"config_digest": digest, "seed": seed, "nonce": nonce}
    append(sql, Event(actor=actors.operator(), action="run-begun", subject=f"run:{federation}", details=details))
