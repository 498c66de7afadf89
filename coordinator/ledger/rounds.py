"""Rounds in the ledger: planned with their assignments, moved from state to state, counted once."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from sqlalchemy import Connection

from coordinator.audit_log.entry import Event
from coordinator.ledger.assignments import insert_assignments
from coordinator.ledger.audit_log import append
from coordinator.ledger.database import LedgerPart, in_groups, statement
from coordinator.ledger.records import (
    ROUND_MOVES,
    Assignment,
    Contribution,
    Round,
    RoundState,
    check_move,
    round_from_row,
)
from edge.contracts.codec import encode_json
from edge.contracts.errors import LedgerError

COLUMNS = "round, attempt, state, deadline_s, participants, model_digest, metrics"
OPEN = "state NOT IN ('committed', 'abandoned')"

DAMAGED = "store-damaged"
"""The code of an assignment that was open in an attempt whose blobs were damaged."""

_TIME_OF: Mapping[RoundState, str] = {
    "published": "published_at",
    "aggregating": "aggregating_at",
    "committed": "ended_at",
    "abandoned": "ended_at",
}
"""State -> the column that says when an attempt came to it, by the clock of the process that moved it."""

_OF_ATTEMPT = "SELECT assignment_id FROM assignments WHERE round = :round AND attempt = :attempt"


class Rounds(LedgerPart):
    """Every attempt at every round."""

    def plan(self, round_index: int, attempt: int, *, deadline_s: float, assignments: Sequence[Assignment]) -> None:
        """Writes an attempt at a round and all its assignments, together or not at all.

        Raises:
            LedgerError: the attempt exists, another one is still open, or an assignment belongs elsewhere.
        """
        with self._file.transaction() as sql:
            still = sql.execute(statement(f"SELECT round, attempt, state FROM rounds WHERE {OPEN}")).first()
            if still:
                raise LedgerError(f"round {still[0]}, attempt {still[1]} is {still[2]}; finish it before the next plan")
            sql.execute(
                statement(
                    "INSERT INTO rounds (round, attempt, state, deadline_s, participants, metrics, planned_at) "
                    "VALUES (:round, :attempt, 'planned', :deadline_s, :participants, :metrics, :now)"
                ),
                {
                    "round": round_index,
                    "attempt": attempt,
                    "deadline_s": deadline_s,
                    "participants": encode_json([]),
                    "metrics": encode_json({}),
                    "now": time.time(),
                },
            )
            insert_assignments(sql, round_index, attempt, assignments)
        self._file.count_plan()

    def extend(self, round_index: int, attempt: int, assignments: Sequence[Assignment]) -> None:
        """Writes more work in an attempt that is under way, all of it or none.

        Raises:
            LedgerError: the attempt is not there or past collecting, or an assignment exists or belongs elsewhere.
        """
        with self._file.transaction() as sql:
            state = _state(sql, round_index, attempt)
            if state not in ("planned", "published", "collecting"):
                raise LedgerError(
                    f"round {round_index}, attempt {attempt} is {state} and takes no more work; plan the next round"
                )
            insert_assignments(sql, round_index, attempt, assignments)
        self._file.count_plan()

    def move(
        self,
        round_index: int,
        attempt: int,
        to: RoundState,
        *,
        participants: Iterable[str] = (),
        contributions: Sequence[Contribution] | None = None,
        model_digest: str = "",
        metrics: Mapping[str, Any] | None = None,
        keep_updates: bool = False,
        reason: str = "",
    ) -> None:
        """Moves an attempt to state ``to``, with what that state needs.

        Args:
            participants: for ``aggregating``: devices whose updates of this attempt are summed, by ``num_examples``.
            contributions: for ``aggregating``, instead of participants: which updates, of this round or earlier ones,
                with which weight.
            model_digest: for ``committed``: the blob of the new model, already known to the ledger.
            metrics: for ``committed``.
            keep_updates: for ``abandoned``: what the attempt has recorded waits for the next one, instead of being
                dropped with it.
            reason: for ``abandoned``: why, in words, for the audit log.

        Raises:
            LedgerError: an illegal move, a participant without an update, an update that was counted before or is
                quarantined, a model without a blob; nothing changes.
        """
        what, here = f"round {round_index}, attempt {attempt}", {"round": round_index, "attempt": attempt}
        with self._file.transaction() as sql:
            check_move(ROUND_MOVES, _state(sql, round_index, attempt), to, what=what)
            if to == "aggregating":
                if contributions is None:
                    contributions = _of_participants(sql, round_index, attempt, sorted(participants))
                _count(sql, round_index, attempt, contributions)
            if to == "committed":
                known = sql.execute(statement("SELECT 1 FROM blobs WHERE digest = :digest"), {"digest": model_digest})
                if not known.first():
                    raise LedgerError(f"{what}: model blob {model_digest[:12]!r} has no row; store and add it first")
                sql.execute(
                    statement(
                        "UPDATE rounds SET model_digest = :digest, metrics = :metrics "
                        "WHERE round = :round AND attempt = :attempt"
                    ),
                    {"digest": model_digest, "metrics": encode_json(dict(metrics or {})), **here},
                )
            if to == "abandoned" and not keep_updates:
                sql.execute(
                    statement(
                        "UPDATE updates SET waits = 0 WHERE waits = 1 AND assignment_id IN "
                        "(SELECT assignment_id FROM assignments WHERE round = :round AND attempt = :attempt)"
                    ),
                    here,
                )
            time_of = f", {_TIME_OF[to]} = :now" if to in _TIME_OF else ""
            sql.execute(
                statement(f"UPDATE rounds SET state = :to{time_of} WHERE round = :round AND attempt = :attempt"),
                {"to": to, **here} | ({"now": time.time()} if time_of else {}),
            )
            if to == "committed":
                append(sql, self._event("round-committed", here, weights=model_digest, **_told(metrics or {})))
            if to == "abandoned":
                append(sql, self._event("round-failed", here, why=reason))

    def _event(self, action: str, here: Mapping[str, int], **details: Any) -> Event:
        subject = f"round:{here['round']}.{here['attempt']}"
        return Event(actor=self._file.actor, action=action, subject=subject, details=details)

    def give_up(self, round_index: int, attempt: int, *, reason: str) -> None:
        """Abandons an open attempt that has lost one of its blobs, in whichever state: its round follows with the next.

        What was counted in it is counted in none, and what other attempts had sent waits as it did before.

        Raises:
            LedgerError: it is committed, abandoned or unknown; nothing changes.
        """
        here = {"round": round_index, "attempt": attempt}
        with self._file.transaction() as sql:
            state = sql.execute(
                statement("SELECT state FROM rounds WHERE round = :round AND attempt = :attempt"), here
            ).scalar()
            if state is None or state in ("committed", "abandoned"):
                raise LedgerError(f"round {round_index}, attempt {attempt} is {state or 'unknown'}; it is not open")
            # What an earlier attempt sent was to be counted here, and is counted in a later one instead.
            sql.execute(
                statement(
                    "UPDATE updates SET waits = 1 WHERE assignment_id IN (SELECT assignment_id FROM contributions "
                    f"WHERE round = :round AND attempt = :attempt) AND assignment_id NOT IN ({_OF_ATTEMPT})"
                ),
                here,
            )
            for change in (
                "DELETE FROM contributions WHERE round = :round AND attempt = :attempt",
                f"UPDATE updates SET waits = 0 WHERE waits = 1 AND assignment_id IN ({_OF_ATTEMPT})",
            ):
                sql.execute(statement(change), here)
            sql.execute(
                statement(
                    "UPDATE rounds SET state = 'abandoned', participants = :nobody, ended_at = :now "
                    "WHERE round = :round AND attempt = :attempt"
                ),
                {"nobody": encode_json([]), "now": time.time(), **here},
            )
            sql.execute(
                statement(
                    "UPDATE assignments SET state = 'expired', code = :code, reason = :reason, answered_at = :now "
                    "WHERE round = :round AND attempt = :attempt AND state IN ('open', 'accepted')"
                ),
                {"code": DAMAGED, "reason": reason, "now": time.time(), **here},
            )
            append(sql, self._event("round-failed", here, why=reason))

    def set_deadline(self, round_index: int, attempt: int, remaining_s: float) -> None:
        """Stores the seconds an attempt has left, so that a restart goes on with them."""
        with self._file.transaction() as sql:
            sql.execute(
                statement("UPDATE rounds SET deadline_s = :left WHERE round = :round AND attempt = :attempt"),
                {"left": remaining_s, "round": round_index, "attempt": attempt},
            )

    def all(self) -> tuple[Round, ...]:
        """Every attempt at every round, in order."""
        rows = self._file.all(f"SELECT {COLUMNS} FROM rounds ORDER BY round, attempt")
        return tuple(round_from_row(row) for row in rows)

    def find(self, round_index: int, attempt: int) -> Round | None:
        """One attempt as it stands now, or None when it was never planned."""
        row = self._file.one(
            f"SELECT {COLUMNS} FROM rounds WHERE round = :round AND attempt = :attempt",
            {"round": round_index, "attempt": attempt},
        )
        return None if row is None else round_from_row(row)

    def open(self) -> Round | None:
        """The attempt that is neither committed nor abandoned; there is at most one."""
        row = self._file.one(f"SELECT {COLUMNS} FROM rounds WHERE {OPEN}")
        return None if row is None else round_from_row(row)

    def last_committed(self) -> Round | None:
        """The newest committed round, whose ``model_digest`` is the current global model."""
        row = self._file.one(f"SELECT {COLUMNS} FROM rounds WHERE state = 'committed' ORDER BY round DESC LIMIT 1")
        return None if row is None else round_from_row(row)


def _told(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """What the audit log says of a round's figures: how many updates it is made of, and the privacy spent so far."""
    told = {"reports": metrics["reports"]} if "reports" in metrics else {}
    privacy = metrics.get("privacy")
    return told | ({"privacy": dict(privacy)} if isinstance(privacy, Mapping) else {})


class _Weighed(msgspec.Struct, frozen=True):
    """What of a report the default weight needs."""

    num_examples: int


def _state(sql: Connection, round_index: int, attempt: int) -> str:
    state = sql.execute(
        statement("SELECT state FROM rounds WHERE round = :round AND attempt = :attempt"),
        {"round": round_index, "attempt": attempt},
    ).scalar()
    if state is None:
        raise LedgerError(f"round {round_index}, attempt {attempt} is not in the ledger; plan it first")
    return str(state)


def _of_participants(sql: Connection, round_index: int, attempt: int, chosen: Sequence[str]) -> list[Contribution]:
    rows = sql.execute(
        statement(
            "SELECT a.device, a.assignment_id, u.report FROM assignments a JOIN updates u USING (assignment_id) "
            "WHERE a.round = :round AND a.attempt = :attempt"
        ),
        {"round": round_index, "attempt": attempt},
    )
    reported = {device: (assignment_id, report) for device, assignment_id, report in rows}
    without = sorted(set(chosen) - reported.keys())
    if without or not chosen:
        raise LedgerError(
            f"round {round_index}, attempt {attempt}: {len(chosen)} participants, no update from {without[:5]}; "
            "collect first"
        )
    return [
        Contribution(assignment_id=assignment_id, weight=float(msgspec.json.decode(report, type=_Weighed).num_examples))
        for assignment_id, report in (reported[device] for device in chosen)
    ]


def _count(sql: Connection, round_index: int, attempt: int, contributions: Sequence[Contribution]) -> None:
    """Writes which updates the attempt counts; the table's key lets each in once, in whichever round."""
    what = f"round {round_index}, attempt {attempt}"
    found = _updates_by_id(sql, [c.assignment_id for c in contributions])
    if not contributions:
        raise LedgerError(f"{what}: no update to aggregate; collect first")
    for entry in contributions:
        name, row = f"assignment {entry.assignment_id[:12]}", found.get(entry.assignment_id)
        if row is None:
            raise LedgerError(f"{what}: {name} has no update; collect first")
        device, of_round, counted_in, code = row
        if counted_in is not None:
            raise LedgerError(f"{what}: the update of {device} in round {of_round} was counted in round {counted_in}")
        if code is not None:
            raise LedgerError(
                f"{what}: the update of {device} in round {of_round} is quarantined ({code}); leave it out"
            )
        if of_round > round_index or not (math.isfinite(entry.weight) and entry.weight >= 0):
            raise LedgerError(f"{what}: {name} is of round {of_round} and weighs {entry.weight}; choose again")
    rows = [
        {"assignment_id": c.assignment_id, "round": round_index, "attempt": attempt, "weight": c.weight}
        for c in contributions
    ]
    sql.execute(statement("INSERT INTO contributions VALUES (:assignment_id, :round, :attempt, :weight)"), rows)
    sql.execute(statement("UPDATE updates SET waits = 0 WHERE assignment_id = :assignment_id"), rows)
    devices = sorted(found[c.assignment_id][0] for c in contributions)
    sql.execute(
        statement("UPDATE rounds SET participants = :devices WHERE round = :round AND attempt = :attempt"),
        {"devices": encode_json(devices), "round": round_index, "attempt": attempt},
    )


def _updates_by_id(sql: Connection, ids: Sequence[str]) -> dict[str, tuple[str, int, int | None, str | None]]:
    """Assignment id -> its device and round, the round that counted its update, the code it is quarantined for."""
    query = (
        "SELECT u.assignment_id, a.device, a.round, c.round, q.code "
        "FROM updates u JOIN assignments a USING (assignment_id) "
        "LEFT JOIN contributions c USING (assignment_id) LEFT JOIN quarantine q USING (assignment_id) "
        "WHERE u.assignment_id IN :ids"
    )
    found = {}
    for group in in_groups(ids):
        for key, device, of_round, counted_in, code in sql.execute(statement(query, "ids"), {"ids": group}):
            found[key] = (device, of_round, counted_in, code)
    return found
