"""What a run has in store: blobs, artifacts, devices' profiles and what they measured. Part of the ledger's file.

Weights, updates and models are released when no open round needs them; a run would otherwise keep every update.
"""

from __future__ import annotations

import sqlite3
import time

import msgspec

from coordinator.ledger_file import LedgerFile
from coordinator.ledger_records import Measurement, Setback
from edge.contracts.codec import encode_json
from edge.contracts.errors import LedgerError
from profiles.device import DeviceProfile

_LARGEST = 1 << 50
"""Bytes; a device says what it likes, a column holds 64 bits."""


class Inventory:
    """The tables that outlive rounds; :class:`~coordinator.ledger.Ledger` adds those of the rounds."""

    def __init__(self, file: LedgerFile) -> None:
        self._file = file

    def add_blob(self, digest: str, size: int) -> None:
        """Makes a stored blob known; adding it again changes nothing."""
        with self._file.transaction() as sql:
            insert_blob(sql, digest, size)

    def blobs(self) -> dict[str, int]:
        """Digest -> size of every known blob; a stored blob that is not among them is garbage."""
        return dict(self._file.all("SELECT digest, size FROM blobs"))

    def release_blobs(self, before_round: int) -> tuple[str, ...]:
        """Forgets weights, updates and models that only rounds before ``before_round`` used; artifacts stay.

        The model that ``before_round`` starts from stays too. The caller deletes the files of the digests it gets.
        """
        with self._file.transaction() as sql:
            used = (
                "SELECT weights_digest FROM assignments WHERE round {0} :round UNION "
                "SELECT update_digest FROM updates JOIN assignments USING (assignment_id) WHERE round {0} :round UNION "
                "SELECT model_digest FROM rounds WHERE round {0} :round - 1"
            )
            rows = sql.execute(
                f"SELECT digest FROM blobs WHERE digest IN ({used.format('<')}) "
                f"AND digest NOT IN ({used.format('>=')}) "
                "AND digest NOT IN (SELECT manifest_digest FROM artifacts) ORDER BY digest",
                {"round": before_round},
            ).fetchall()
            sql.executemany("DELETE FROM blobs WHERE digest = ?", rows)
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
            sql.execute("INSERT INTO artifacts VALUES (?, ?)", (export_key, manifest_digest))

    def artifact(self, export_key: str) -> str | None:
        """Digest of the manifest for ``export_key``, or None when this run has not exported it."""
        row = self._file.one("SELECT manifest_digest FROM artifacts WHERE export_key = ?", (export_key,))
        return None if row is None else str(row[0])

    def freeze_profile(self, profile: DeviceProfile) -> bool:
        """Adds a device's profile to the snapshot plans are made from; False when the device has one already."""
        with self._file.transaction() as sql:
            cursor = sql.execute(
                "INSERT INTO profiles VALUES (?, ?, ?) ON CONFLICT (device) DO NOTHING",
                (profile.device, encode_json(profile), time.time()),
            )
            return cursor.rowcount == 1

    def profiles(self) -> dict[str, DeviceProfile]:
        """The frozen snapshot, by device id, in device-id order."""
        rows = self._file.all("SELECT device, profile FROM profiles ORDER BY device")
        return {device: msgspec.json.decode(profile, type=DeviceProfile) for device, profile in rows}

    def add_measurement(self, measurement: Measurement) -> None:
        """Records a measurement; for the same step of the same device the largest peak and the latest time stay."""
        m = measurement
        with self._file.transaction() as sql:
            sql.execute(
                "INSERT INTO measurements VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (device, export_key, batch) DO UPDATE "
                "SET predicted_peak = excluded.predicted_peak, step_ms = excluded.step_ms, "
                "measured_peak = max(measured_peak, excluded.measured_peak)",
                (m.device, m.export_key, m.batch, m.predicted_peak_bytes, m.measured_peak_bytes, m.step_ms),
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


def insert_blob(sql: sqlite3.Connection, digest: str, size: int) -> None:
    """Makes a blob known inside the caller's transaction."""
    sql.execute("INSERT INTO blobs VALUES (?, ?, ?) ON CONFLICT (digest) DO NOTHING", (digest, size, time.time()))


def insert_setback(sql: sqlite3.Connection, assignment_id: str, code: str, peak_bytes: int, limit_bytes: int) -> None:
    """Records a setback inside the caller's transaction; sizes that no memory has are cut."""
    peak, limit = (min(max(0, size), _LARGEST) for size in (peak_bytes, limit_bytes))
    sql.execute("INSERT INTO setbacks VALUES (?, ?, ?, ?)", (assignment_id, code, peak, limit))
