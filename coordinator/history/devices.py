"""Devices, from the ledger: profile, newest assignment, prediction beside measurement, and what came of all of it.

Sums over rounds in which nothing is open any more are kept; only later rounds are counted again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from coordinator.history.assignments import read_parts
from coordinator.history.records import Counts, DeviceRecord, Presence
from coordinator.ledger.read_only import ReadOnlyLedger
from coordinator.planning.prediction import step_ms
from edge.contracts.manifest import ArtifactManifest
from export.forms.step_form import PLAIN
from profiles.device import DeviceProfile

Tallies = dict[str, dict[str, int]]
"""Device -> state of an assignment -> how many are in it."""

_NEWEST = (
    "(SELECT n.assignment_id FROM assignments n WHERE n.device = p.device "
    "ORDER BY n.round DESC, n.attempt DESC LIMIT 1)"
)
_SELECT = (
    "SELECT p.device, p.profile, p.frozen_at, a.level, a.form, a.round, a.attempt, a.state, a.code, a.reason, "
    "a.work_order, a.artifact_digest FROM profiles p LEFT JOIN assignments a ON a.assignment_id = " + _NEWEST
)


class DeviceReader:
    """Reads devices of one run.

    Args:
        manifest: that of an artifact's digest, None where it is not at hand.
    """

    def __init__(self, ledger: ReadOnlyLedger, manifest: Callable[[str], ArtifactManifest | None]) -> None:
        self._ledger = ledger
        self._read_manifest = manifest
        self._manifests: dict[str, ArtifactManifest | None] = {}
        self._profiles: dict[str, tuple[bytes, DeviceProfile]] = {}
        self._settled: Tallies = defaultdict(dict)
        self._settled_before = 0

    def page(self, after: str, limit: int) -> tuple[DeviceRecord, ...]:
        """Those behind ``after``, by id."""
        rows = self._ledger.all(
            f"{_SELECT} WHERE p.device > :after ORDER BY p.device LIMIT :limit", {"after": after, "limit": limit}
        )
        return self._records(rows)

    def one(self, device: str) -> DeviceRecord | None:
        """The device of that id."""
        found = self._records(self._ledger.all(f"{_SELECT} WHERE p.device = :device", {"device": device}))
        return found[0] if found else None

    def profile(self, device: str) -> DeviceProfile | None:
        """As it stands in the snapshot."""
        row = self._ledger.one("SELECT profile FROM profiles WHERE device = :device", {"device": device})
        return None if row is None else msgspec.json.decode(row[0], type=DeviceProfile)

    def presences(self) -> tuple[Presence, ...]:
        """Those that the ledger's coordinators heard, by id."""
        rows = self._ledger.all("SELECT device, heard_at, heartbeat, away_reason FROM presence ORDER BY device")
        return tuple(
            Presence(device=row[0], heard_at=row[1], heartbeat=_body(bytes(row[2])), away_reason=row[3]) for row in rows
        )

    def first_unsettled_round(self) -> int:
        """The last round, or an earlier one with work that is open; in those before nothing changes any more."""
        last, still_open = self._ledger.one(
            "SELECT (SELECT MAX(round) FROM rounds), "
            "(SELECT MIN(round) FROM assignments WHERE state IN ('open', 'accepted'))"
        )
        return max(0, min(last or 0, last or 0 if still_open is None else still_open))

    def tallies(self) -> Tallies:
        """Every device's assignments by state."""
        settled = self.first_unsettled_round()
        if settled > self._settled_before:
            _add(self._settled, self._count(self._settled_before, settled))
            self._settled_before = settled
        found: Tallies = defaultdict(dict)
        _add(found, [(d, s, n) for d, states in self._settled.items() for s, n in states.items()])
        _add(found, self._count(self._settled_before, None))
        return found

    def _count(self, first: int, before: int | None) -> list[tuple[str, str, int]]:
        until, values = (
            ("", {"first": first})
            if before is None
            else (
                "AND round < :before ",
                {"first": first, "before": before},
            )
        )
        # The expression keeps SQLite from the index by device, in which it would read the rows of every round.
        return self._ledger.all(
            "SELECT named, state, COUNT(*) FROM (SELECT device || '' AS named, state FROM assignments "
            f"WHERE round >= :first {until}) AS counted GROUP BY named, state",
            values,
        )

    def _records(self, rows: list[Any]) -> tuple[DeviceRecord, ...]:
        if not rows:
            return ()
        only, values = ("", {}) if len(rows) > 1 else (" WHERE device = :device", {"device": rows[0][0]})
        beside = _Beside(
            tallies=self.tallies() if len(rows) > 1 else self._tally_of(rows[0][0]),
            measured={
                (device, digest): (predicted, measured, ms)
                for device, digest, predicted, measured, ms in self._ledger.all(
                    "SELECT m.device, f.manifest_digest, MAX(m.predicted_peak), MAX(m.measured_peak), MAX(m.step_ms) "
                    "FROM measurements m JOIN artifacts f USING (export_key)"
                    f"{only} GROUP BY m.device, f.manifest_digest",
                    values,
                )
            },
            reliability={
                row[0]: (row[1], row[2])
                for row in self._ledger.all(f"SELECT device, score, barred_until FROM standings{only}", values)
            },
            quarantine=defaultdict(list),
            sent=defaultdict(dict),
        )
        for device, code in self._ledger.all(f"SELECT device, code FROM quarantine{only} ORDER BY round", values):
            beside.quarantine[device].append(code)
        for device, direction, count in self._ledger.all(
            f"SELECT device, direction, SUM(payload_bytes) FROM traffic{only} GROUP BY device, direction", values
        ):
            beside.sent[device][direction] = int(count)
        return tuple(self._record(row, beside) for row in rows)

    def _tally_of(self, device: str) -> Tallies:
        rows = self._ledger.all(
            "SELECT state, COUNT(*) FROM assignments WHERE device = :device GROUP BY state", {"device": device}
        )
        return {device: {state: int(count) for state, count in rows}}

    def _record(self, row: Any, beside: _Beside) -> DeviceRecord:
        device, profile_json, frozen_at, level, form, round_index, attempt, state, code, reason, order, digest = row
        profile = self._profile_of(device, bytes(profile_json))
        predicted, measured, ms = beside.measured.get((device, digest), (0, 0, None))
        parts = read_parts(order or b"")
        states = beside.tallies.get(device, {})
        kept_out = beside.quarantine.get(device, [])
        score, barred_until = beside.reliability.get(device, (1.0, -1))
        return DeviceRecord(
            device=device,
            board=profile.board or profile.cpu_model or profile.machine,
            runtimes=tuple(sorted(profile.runtimes)),
            ram_bytes=profile.ram_bytes,
            budget_bytes=profile.budget_bytes,
            joined_at=frozen_at or None,
            level=level or "",
            form=form or "",
            round=-1 if round_index is None else round_index,
            attempt=attempt or 0,
            state=state or "",
            code=code or "",
            reason=reason or "",
            predicted_peak_bytes=parts.peak_bytes or predicted,
            measured_peak_bytes=measured,
            predicted_step_ms=self._predicted_ms(profile, digest or "", form or "", parts.threads),
            step_ms=ms,
            counts=Counts(
                assigned=sum(states.values()),
                reported=states.get("reported", 0),
                refused=states.get("refused", 0),
                rejected=states.get("rejected", 0),
                expired=states.get("expired", 0),
                waiting=states.get("open", 0) + states.get("accepted", 0),
                quarantined=len(kept_out),
            ),
            score=score,
            barred_until=barred_until,
            quarantine=kept_out[-1] if kept_out else "",
            bytes_up=beside.sent.get(device, {}).get("up", 0),
            bytes_down=beside.sent.get(device, {}).get("down", 0),
        )

    def _profile_of(self, device: str, data: bytes) -> DeviceProfile:
        """Read once: a snapshot's profile changes seldom, and thousands are looked at every second."""
        known = self._profiles.get(device)
        if known is None or known[0] != data:
            known = self._profiles[device] = data, msgspec.json.decode(data, type=DeviceProfile)
        return known[1]

    def _predicted_ms(self, profile: DeviceProfile, digest: str, form: str, threads: int) -> float | None:
        """By the line that was measured on the device; a step in another form is predicted from the plain one, which
        its own manifest does not have."""
        if not digest or form != PLAIN.name or not profile.step_lines:
            return None
        if digest not in self._manifests:
            self._manifests[digest] = self._read_manifest(digest)
        manifest = self._manifests[digest]
        if manifest is None:
            return None
        lines = [line for line in profile.step_lines.get(manifest.runtime, ()) if line.threads == threads]
        return step_ms(lines[0], manifest.cost, PLAIN) if lines else None


class _Beside(msgspec.Struct, frozen=True):
    """What other tables say, by device."""

    tallies: Mapping[str, Mapping[str, int]]
    measured: Mapping[tuple[str, str], tuple[int, int, float]]
    reliability: Mapping[str, tuple[float, int]]
    quarantine: dict[str, list[str]]
    sent: dict[str, dict[str, int]]


def _add(tallies: Tallies, rows: list[tuple[str, str, int]]) -> None:
    for device, state, count in rows:
        states = tallies[device]
        states[state] = states.get(state, 0) + int(count)


def _body(data: bytes) -> dict[str, Any]:
    if not data:
        return {}
    try:
        found = msgspec.msgpack.decode(data)
    except msgspec.MsgspecError:
        return {}
    return found if isinstance(found, dict) else {}
