"""What a load test found, as values and as a table, each figure beside the limit it was held against."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from coordinator.loadtest.figures import slope, trips_table
from coordinator.loadtest.light_messages import AGENT_VERSION
from coordinator.loadtest.site import Outcome, Plan
from coordinator.loadtest.stand_in import NAME
from coordinator.loadtest.watched_process import Sample, cpu_s, peak_bytes

MIB = 1 << 20
WARM_UP = 0.2
"""Share of the rounds, from the first on, whose memory says nothing about growth."""

ROUNDS_FOR_SLOPE = 100


@dataclass(frozen=True)
class Limits:
    """The most a figure may be; None: it is only shown.

    Attributes:
        rss_mb, broker_rss_mb: peak physical memory, MB of 2^20 bytes.
        trip_ms: 99th percentile of the probe's round trip.
        wire: bytes through sockets over bytes of weights and updates, the worse direction.
        cut_extra: with cut links, bytes through sockets beyond those of weights and updates, as a share of these.
        rss_slope_mb: growth of the coordinator in 1,000 rounds.
    """

    rss_mb: float | None = None
    broker_rss_mb: float | None = None
    trip_ms: float | None = None
    wire: float | None = None
    cut_extra: float | None = None
    rss_slope_mb: float | None = None


def values_of(plan: Plan, outcome: Outcome, limits: Limits) -> dict[str, Any]:
    """The values of the result's JSON line; ``ok`` is false when a limit does not hold or rounds are missing."""
    figures, trips = outcome.figures, trips_table(outcome.figures.trips_ms)
    acks = figures.counts.get("acks", 0)
    held = _held(outcome, limits)
    broken = [entry["name"] for entry in held if entry["holds"] is False]
    missing = 0 if plan.attach else plan.rounds - len(outcome.rounds)
    values: dict[str, Any] = {
        "device_kind": AGENT_VERSION,
        "training": NAME,
        "devices": plan.devices,
        "participants": plan.participants,
        "rounds": len(outcome.rounds),
        "broker": plan.broker,
        "tls": plan.tls,
        "update_bytes": figures.payload_up // acks if acks else 0,
        "connect_s": round(figures.connect_s, 2),
        "connects_per_s": round(plan.devices / figures.connect_s, 1) if figures.connect_s else None,
        "round_s": [round(float(event["wall_s"]), 2) for event in outcome.rounds][-20:],
        "rounds_per_s": _rounds_per_s(outcome),
        "trips": trips,
        "processes": {name: _process(samples) for name, samples in outcome.samples.items()},
        "device_cpu_s": round(figures.cpu_s, 1),
        "device_lag_ms": round(figures.lag_ms, 1),
        "payload_bytes": {"up": figures.payload_up, "down": figures.payload_down},
        "wire_bytes": {"up": figures.wire_up, "down": figures.wire_down},
        "socket_bytes": {"sent": figures.socket_sent, "received": figures.socket_received},
        "counts": dict(sorted(figures.counts.items())),
        "limits": held,
        "wall_s": round(outcome.wall_s, 1),
        "ok": not broken and missing <= 0,
    }
    if missing > 0:
        why = f"{missing} of {plan.rounds} rounds are missing after {outcome.wall_s:.0f} s"
        values["error"] = {
            "code": "unfinished",
            "message": f"{why}; the coordinator's last lines: {outcome.log_end[-400:].strip()}",
            "hint": "give more --seconds, or fewer participants",
        }
    elif broken:
        values["error"] = {
            "code": "limit",
            "message": "; ".join(
                f"{entry['name']} {entry['value']} is over {entry['limit']}"
                for entry in held
                if entry["holds"] is False
            ),
            "hint": "docs/scale.md says what each depends on",
        }
    return values


def table(values: dict[str, Any]) -> str:
    """The figures for people."""
    rows = [("figure", "value", "limit")]
    for entry in values["limits"]:
        shown = "-" if entry["value"] is None else f"{entry['value']:g}"
        limit = "" if entry["limit"] is None else f"{entry['limit']:g}{'' if entry['holds'] else '  not held'}"
        rows.append((entry["name"], shown, limit))
    if values["connects_per_s"]:
        rows.append(("connects a second", f"{values['connects_per_s']:g}", ""))
    for name, trip in values["trips"].items():
        rows.append((f"{name}, p50 / p99 / max ms", f"{trip['p50_ms']} / {trip['p99_ms']} / {trip['max_ms']}", ""))
    if values["round_s"]:
        rows.append(("round, last, s", f"{values['round_s'][-1]:g}", ""))
    for name, process in values["processes"].items():
        rows.append((f"{name}: processor seconds", f"{process['cpu_s']:g}", ""))
    rows.append(("light devices: processor seconds", f"{values['device_cpu_s']:g}", ""))
    widths = [max(len(row[i]) for row in rows) for i in range(2)]
    head = (
        f"{values['devices']} {values['device_kind']}s, {values['participants']} a round, "
        f"{values['rounds']} rounds of {values['update_bytes'] / 1e6:.2f} MB updates ({values['training']})"
    )
    return "\n".join([head, *(f"{a:<{widths[0]}}  {b:<{widths[1]}}  {c}".rstrip() for a, b, c in rows)])


def _held(outcome: Outcome, limits: Limits) -> list[dict[str, Any]]:
    figures = outcome.figures
    probe = trips_table(figures.trips_ms).get("probe")
    wire = _worst(figures.wire_up, figures.payload_up, figures.wire_down, figures.payload_down)
    found: list[tuple[str, float | None, float | None]] = [
        ("coordinator_rss_mb", _peak_mb(outcome, "coordinator"), limits.rss_mb),
        ("broker_rss_mb", _peak_mb(outcome, "broker"), limits.broker_rss_mb),
        ("control_trip_p99_ms", probe["p99_ms"] if probe else None, limits.trip_ms),
        ("wire_over_payload", wire, limits.wire),
        ("cut_extra", wire - 1.0 if wire and figures.counts.get("cuts") else None, limits.cut_extra),
        ("rss_mb_per_1000_rounds", rss_slope_mb(outcome.samples.get("coordinator", ())), limits.rss_slope_mb),
    ]  # fmt: skip
    return [
        {
            "name": name,
            "value": None if value is None else round(value, 4),
            "limit": limit,
            "holds": None if limit is None else value is not None and value <= limit,
        }
        for name, value, limit in found
    ]


def rss_slope_mb(samples: Sequence[Sample]) -> float | None:
    """MB (2^20) that a process grows in 1,000 rounds, after the first fifth; None of too few rounds."""
    last = samples[-1].note if samples else 0.0
    if last < ROUNDS_FOR_SLOPE:
        return None
    rise = slope([(entry.note, entry.rss_bytes) for entry in samples if entry.note >= WARM_UP * last])
    return None if rise is None else rise * 1000 / MIB


def _process(samples: Sequence[Sample]) -> dict[str, Any]:
    last = samples[-1].note if samples else 0.0
    # Not those of its end: a process that is ending has closed its files.
    later = [entry for entry in samples if WARM_UP * last <= entry.note < last] or list(samples)
    return {
        "peak_rss_mb": round(peak_bytes(samples) / MIB, 1),
        "last_rss_mb": round(samples[-1].rss_bytes / MIB, 1) if samples else 0.0,
        "cpu_s": round(cpu_s(samples), 1),
        "open_files": [min(e.open_files for e in later), max(e.open_files for e in later)] if later else [],
        "open_files_growth": _open_files_growth(later),
    }


def _open_files_growth(samples: Sequence[Sample]) -> int | None:
    """Least of the last third of the rounds over the least of the first third: files open for a moment do not count."""
    if not samples:
        return None
    first, last = samples[0].note, samples[-1].note
    third = (last - first) / 3
    early = min(entry.open_files for entry in samples if entry.note <= first + third)
    return min(entry.open_files for entry in samples if entry.note >= last - third) - early


def _rounds_per_s(outcome: Outcome) -> float | None:
    if len(outcome.rounds) < 2:
        return None
    span = float(outcome.rounds[-1]["at_s"]) - float(outcome.rounds[0]["at_s"])
    return round((len(outcome.rounds) - 1) / span, 2) if span > 0 else None


def _peak_mb(outcome: Outcome, name: str) -> float | None:
    samples = outcome.samples.get(name)
    return peak_bytes(samples) / MIB if samples else None


def _worst(*pairs: int) -> float | None:
    ratios = [wire / payload for wire, payload in zip(pairs[::2], pairs[1::2], strict=True) if payload]
    return max(ratios, default=None)
