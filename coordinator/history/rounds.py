"""Rounds, from the ledger: every attempt with its counts, figures and times."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

import msgspec

from coordinator.history.records import Privacy, RoundRecord
from coordinator.ledger.read_only import ReadOnlyLedger


class _Privacy(msgspec.Struct):
    epsilon: float | None = None
    delta: float | None = None


class _Metrics(msgspec.Struct):
    """Those of a round's metrics that are shown; others are passed over unread."""

    examples: int = 0
    train_loss: float | None = None
    bytes_up: int = 0
    bytes_down: int = 0
    over_budget: int = 0
    wall_s: float | None = None
    evaluation: dict[str, dict[str, float | None]] = {}
    privacy: _Privacy | None = None


def rounds(ledger: ReadOnlyLedger, since: int, limit: int) -> tuple[RoundRecord, ...]:
    """Attempts at round ``since`` and later ones, in order."""
    here = {"since": since, "limit": limit}
    rows = ledger.all(
        "SELECT round, attempt, state, metrics, planned_at, published_at, aggregating_at, ended_at FROM rounds "
        "WHERE round >= :since ORDER BY round, attempt LIMIT :limit",
        here,
    )
    if not rows:
        return ()
    span = {"since": since, "last": rows[-1][0]}
    assigned: dict[tuple[int, int], dict[Any, int]] = defaultdict(dict)
    reported: dict[tuple[int, int], dict[str, int]] = defaultdict(dict)
    for round_index, attempt, state, level, count in ledger.all(
        "SELECT round, attempt, state, level, COUNT(*) FROM assignments "
        "WHERE round BETWEEN :since AND :last GROUP BY round, attempt, state, level",
        span,
    ):
        states = assigned[round_index, attempt]
        states[state] = states.get(state, 0) + count
        if state == "reported":
            reported[round_index, attempt][level] = count
    counted = _pairs(
        ledger,
        "SELECT round, attempt, COUNT(*) FROM contributions "
        "WHERE round BETWEEN :since AND :last GROUP BY round, attempt",
        span,
    )
    # Not as a join: SQLite would go through every assignment to find the few of them.
    kept_out = Counter(
        (row[0], row[1])
        for row in ledger.all(
            "SELECT round, attempt FROM assignments WHERE assignment_id IN "
            "(SELECT assignment_id FROM quarantine WHERE round BETWEEN :since AND :last)",
            span,
        )
    )
    reasons = _reasons(ledger) if any(row[2] == "abandoned" for row in rows) else {}
    return tuple(
        _record(row, assigned[row[0], row[1]], reported[row[0], row[1]], counted, kept_out, reasons) for row in rows
    )


def _record(
    row: Any,
    assigned: dict[Any, int],
    reported: dict[str, int],
    counted: dict[tuple[int, int], int],
    kept_out: dict[tuple[int, int], int],
    reasons: dict[str, str],
) -> RoundRecord:
    round_index, attempt, state, metrics, *times = row
    found = msgspec.json.decode(metrics, type=_Metrics)
    planned_at, published_at, aggregating_at, ended_at = (time or None for time in times)
    spent = found.privacy
    return RoundRecord(
        round=round_index,
        attempt=attempt,
        state=state,
        why=reasons.get(f"round:{round_index}.{attempt}", "") if state == "abandoned" else "",
        assigned=assigned,
        reported=reported,
        counted=counted.get((round_index, attempt), 0),
        quarantined=kept_out.get((round_index, attempt), 0),
        planned_at=planned_at,
        published_at=published_at,
        aggregating_at=aggregating_at,
        ended_at=ended_at,
        wall_s=found.wall_s,
        examples=found.examples,
        loss=found.train_loss,
        scores={
            model: {name: value for name, value in values.items() if value is not None}
            for model, values in found.evaluation.items()
        },
        bytes_up=found.bytes_up,
        bytes_down=found.bytes_down,
        over_budget=found.over_budget,
        privacy=None
        if spent is None or spent.epsilon is None or spent.delta is None
        else Privacy(epsilon=spent.epsilon, delta=spent.delta),
    )


def _pairs(ledger: ReadOnlyLedger, query: str, span: dict[str, int]) -> dict[tuple[int, int], int]:
    return {(row[0], row[1]): int(row[2]) for row in ledger.all(query, span)}


def _reasons(ledger: ReadOnlyLedger) -> dict[str, str]:
    """``round:<index>.<attempt>`` -> why it was given up."""
    rows = ledger.all("SELECT subject, details FROM audit_log WHERE action = 'round-failed' ORDER BY number")
    return {subject: str(msgspec.json.decode(details).get("why", "")) for subject, details in rows}
