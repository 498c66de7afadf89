"""What a run has in store: blobs, artifacts, and what devices measured. Part of the ledger.

Weights, updates and models are released when no open round needs them; a run would otherwise keep every update.
"""

from __future__ import annotations

import time

from sqlalchemy import Connection

from coordinator.ledger_file import LedgerPart, statement
from coordinator.ledger_records import Measurement, Setback
from edge.contracts.errors import LedgerError

_LARGEST = 1 << 50
"""Bytes; a device says what it likes, a column holds 64 bits."""


_USED = (
    "SELECT weights_digest FROM assignments WHERE round {0} UNION "
    "SELECT update_digest FROM updates JOIN assignments USING (assignment_id) WHERE round {0} UNION "
    "SELECT model_digest FROM rounds WHERE round {1}"
)
_USED_BEFORE = _USED.format("BETWEEN :floor AND :before - 1", "BETWEEN :floor - 1 AND :before - 2")
_USED_SINCE = _USED.format(">= :before", ">= :before - 1")
_COUNTED_LATER = "SELECT assignment_id FROM contributions WHERE round >= :before"
_WAITING = "SELECT assignment_id FROM updates WHERE waits = 1"
# Rounds whose models may be asked for besides the last one: what devices still train, or trained some versions ago, was
# cut from them. Each is kept with what it can be made of again: its updates, and the model and weights before them.
_ORIGINS = (
    "SELECT round - 1 AS origin FROM assignments WHERE state IN ('open', 'accepted') "
    f"OR assignment_id IN ({_WAITING}) UNION "
    "SELECT a.round - 1 FROM assignments a JOIN contributions c USING (assignment_id) "
    "WHERE c.round >= :before AND a.round < c.round"
)
_OF_ORIGINS = f"SELECT assignment_id FROM contributions WHERE round IN ({_ORIGINS})"
_STILL_NEEDED = (
    "SELECT update_digest FROM updates WHERE waits = 1 UNION "
    "SELECT update_digest FROM updates WHERE assignment_id IN (SELECT assignment_id FROM quarantine) UNION "
    f"SELECT update_digest FROM updates WHERE assignment_id IN ({_COUNTED_LATER} UNION {_OF_ORIGINS}) UNION "
    "SELECT weights_digest FROM assignments WHERE state IN ('open', 'accepted') UNION "
    "SELECT weights_digest FROM assignments "
    f"WHERE assignment_id IN ({_WAITING} UNION {_COUNTED_LATER} UNION {_OF_ORIGINS}) UNION "
    f"SELECT model_digest FROM rounds WHERE round IN ({_ORIGINS}) OR round + 1 IN ({_ORIGINS})"
)
_OLDEST_NEEDED = (
    "SELECT MIN(round) FROM (SELECT round FROM assignments "
    f"WHERE assignment_id IN ({_COUNTED_LATER} UNION {_OF_ORIGINS}) UNION ALL "
    f"SELECT origin - 1 FROM ({_ORIGINS}) AS origins) AS needed"
)


class Inventory(LedgerPart):
    """The tables that outlive rounds."""

    _released_below = 0
    """Blobs of rounds before this one were released by this process; a run's history need not be read every round."""

    def add_blob(self, digest: str, size: int) -> None:
        """Makes a stored blob known; adding it again changes nothing."""
        with self._file.transaction() as sql:
            insert_blob(sql, digest, size)

    def blobs(self) -> dict[str, int]:
        """Digest -> size of every known blob; a stored blob that is not among them is garbage."""
        return {digest: size for digest, size in self._file.all("SELECT digest, size FROM blobs")}

    def release_blobs(self, before_round: int) -> tuple[str, ...]:
        """Forgets weights, updates and models that only rounds before ``before_round`` used; artifacts stay.

        The model that ``before_round`` starts from stays too. Of earlier rounds stay the updates that wait to be
        counted, the weights of unanswered assignments, the models these were cut from, and what such a model can be
        made of again: the updates in it, and the model before it. The caller deletes the files of the digests it gets.
        """
        values = {"before": before_round, "floor": self._released_below}
        with self._file.transaction() as sql:
            rows = sql.execute(
                statement(
                    f"SELECT digest FROM blobs WHERE digest IN ({_USED_BEFORE}) "
                    f"AND digest NOT IN ({_USED_SINCE}) AND digest NOT IN ({_STILL_NEEDED}) "
                    "AND digest NOT IN (SELECT manifest_digest FROM artifacts) ORDER BY digest"
                ),
                values,
            ).fetchall()
            if rows:
                sql.execute(
                    statement("DELETE FROM blobs WHERE digest = :digest"), [{"digest": digest} for (digest,) in rows]
                )
            oldest = sql.execute(statement(_OLDEST_NEEDED), {"before": before_round}).scalar()
        self._released_below = max(0, before_round - 1 if oldest is None else min(oldest, before_round - 1))
        return tuple(digest for (digest,) in rows)

    def add_artifact(self, export_key: str, manifest_digest: str) -> None:
        """Records which manifest an export key gave; the manifest's blob is known already.

        Raises:
            LedgerError: unknown blob, or another manifest under that key.
        """
        known = self.artifact(export_key)
        if known == manifest_digest:
            return
        if known is not None:
            raise LedgerError(
                f"export {export_key[:12]} gave manifest {known[:12]} before and {manifest_digest[:12]} now; "
                "an export is not deterministic"
            )
        with self._file.transaction() as sql:
            sql.execute(
                statement("INSERT INTO artifacts VALUES (:export_key, :manifest_digest)"),
                {"export_key": export_key, "manifest_digest": manifest_digest},
            )

    def artifact(self, export_key: str) -> str | None:
        """Digest of the manifest for ``export_key``, or None when this run has not exported it."""
        row = self._file.one("SELECT manifest_digest FROM artifacts WHERE export_key = :key", {"key": export_key})
        return None if row is None else str(row[0])

    def add_measurement(self, measurement: Measurement) -> None:
        """Records a measurement; for the same step of the same device the largest peak and the latest time stay."""
        m = measurement
        with self._file.transaction() as sql:
            sql.execute(
                statement(
                    "INSERT INTO measurements VALUES (:device, :export_key, :batch, :predicted, :measured, :step_ms) "
                    "ON CONFLICT (device, export_key, batch) DO UPDATE "
                    "SET predicted_peak = excluded.predicted_peak, step_ms = excluded.step_ms, "
                    "measured_peak = CASE WHEN measurements.measured_peak > excluded.measured_peak "
                    "THEN measurements.measured_peak ELSE excluded.measured_peak END"
                ),
                {
                    "device": m.device,
                    "export_key": m.export_key,
                    "batch": m.batch,
                    "predicted": m.predicted_peak_bytes,
                    "measured": m.measured_peak_bytes,
                    "step_ms": m.step_ms,
                },
            )

    def measurements(self) -> tuple[Measurement, ...]:
        """Every measurement, ordered by device, export key and batch."""
        rows = self._file.all(
            "SELECT device, export_key, batch, predicted_peak, measured_peak, step_ms FROM measurements "
            "ORDER BY device, export_key, batch"
        )
        return tuple(
            Measurement(
                device=r[0],
                export_key=r[1],
                batch=r[2],
                predicted_peak_bytes=r[3],
                measured_peak_bytes=r[4],
                step_ms=r[5],
            )
            for r in rows
        )

    def setbacks(self) -> tuple[Setback, ...]:
        """Every setback, in the order of rounds, attempts and devices."""
        rows = self._file.all(
            "SELECT s.assignment_id, a.device, a.round, a.level, a.artifact_digest, s.code, s.peak, s.memory_limit "
            "FROM setbacks s JOIN assignments a USING (assignment_id) ORDER BY a.round, a.attempt, a.device"
        )
        names = Setback.__struct_fields__
        return tuple(Setback(**dict(zip(names, row, strict=True))) for row in rows)


def insert_blob(sql: Connection, digest: str, size: int) -> None:
    """Makes a blob known inside the caller's transaction."""
    sql.execute(
        statement("INSERT INTO blobs VALUES (:digest, :size, :now) ON CONFLICT (digest) DO NOTHING"),
        {"digest": digest, "size": size, "now": time.time()},
    )


def insert_setback(sql: Connection, assignment_id: str, code: str, peak_bytes: int, limit_bytes: int) -> None:
    """Records a setback inside the caller's transaction; sizes that no memory has are cut."""
    peak, limit = (min(max(0, size), _LARGEST) for size in (peak_bytes, limit_bytes))
    sql.execute(
        statement("INSERT INTO setbacks VALUES (:id, :code, :peak, :limit)"),
        {"id": assignment_id, "code": code, "peak": peak, "limit": limit},
    )
