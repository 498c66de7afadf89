"""Devices' profiles in the ledger: the snapshot that plans are made from, and what it said before."""

from __future__ import annotations

import time
from collections.abc import Iterable

import msgspec

from coordinator.audit_log import actors
from coordinator.audit_log.entry import Event
from coordinator.ledger.audit_log import append
from coordinator.ledger.database import LedgerPart, statement
from edge.contracts.codec import encode_json
from edge.contracts.errors import LedgerError
from profiles.device import DeviceProfile

EARLIER = 16
"""Replaced profiles that are kept of a device, the newest ones: it says how often they change."""


class Profiles(LedgerPart):
    """The tables ``profiles`` and ``earlier_profiles``."""

    def freeze(self, profiles: Iterable[DeviceProfile]) -> int:
        """Adds those of ``profiles`` whose device has none in the snapshot, in one transaction; their number."""
        known = {device for (device,) in self._file.all("SELECT device FROM profiles")}
        new = [profile for profile in profiles if profile.device not in known]
        if new:
            with self._file.transaction() as sql:
                sql.execute(
                    statement("INSERT INTO profiles VALUES (:device, :profile, :now) ON CONFLICT (device) DO NOTHING"),
                    [{"device": p.device, "profile": encode_json(p), "now": time.time()} for p in new],
                )
                append(sql, *(Event(actor=actors.device(p.device), action="device-joined") for p in new))
        return len(new)

    def of(self, device: str) -> DeviceProfile:
        """The snapshot's profile of ``device``.

        Raises:
            LedgerError: it has none; freeze it first.
        """
        row = self._file.one("SELECT profile FROM profiles WHERE device = :device", {"device": device})
        if row is None:
            raise LedgerError(f"device {device} is not in the snapshot of profiles; freeze its profile first")
        return msgspec.json.decode(row[0], type=DeviceProfile)

    def all(self) -> dict[str, DeviceProfile]:
        """The frozen snapshot, by device id, in device-id order."""
        rows = self._file.all("SELECT device, profile FROM profiles ORDER BY device")
        return {device: msgspec.json.decode(profile, type=DeviceProfile) for device, profile in rows}

    def replace(self, profile: DeviceProfile) -> bool:
        """Puts a device's newest profile into the snapshot, for plans from now on; the one before is kept beside it.

        Returns:
            False when the snapshot says the same already.
        """
        device, new = profile.device, encode_json(profile)
        with self._file.transaction() as sql:
            row = sql.execute(
                statement("SELECT profile FROM profiles WHERE device = :device"), {"device": device}
            ).first()
            if row is not None and row[0] == new:
                return False
            sql.execute(
                statement(
                    "INSERT INTO earlier_profiles SELECT device, "
                    "(SELECT COALESCE(MAX(number) + 1, 0) FROM earlier_profiles e WHERE e.device = :device), profile, "
                    "frozen_at FROM profiles WHERE device = :device"
                ),
                {"device": device},
            )
            sql.execute(
                statement(
                    "DELETE FROM earlier_profiles WHERE device = :device AND number <= "
                    "(SELECT MAX(number) FROM earlier_profiles e WHERE e.device = :device) - :kept"
                ),
                {"device": device, "kept": EARLIER},
            )
            sql.execute(
                statement(
                    "INSERT INTO profiles VALUES (:device, :profile, :now) ON CONFLICT (device) DO UPDATE SET "
                    "profile = excluded.profile, frozen_at = excluded.frozen_at"
                ),
                {"device": device, "profile": new, "now": time.time()},
            )
            return True

    def earlier(self, device: str) -> tuple[DeviceProfile, ...]:
        """Profiles of a device that later ones replaced, oldest first."""
        rows = self._file.all(
            "SELECT profile FROM earlier_profiles WHERE device = :device ORDER BY number", {"device": device}
        )
        return tuple(msgspec.json.decode(profile, type=DeviceProfile) for (profile,) in rows)
