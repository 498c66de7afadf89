"""What does not add up in a ledger: the rules that every write keeps, asked of the tables themselves.

Reads only. The bytes behind the rows are :mod:`coordinator.blobs.blob_store`'s; what to do is ``apportion fsck``'s to
say.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec

from coordinator.ledger.database import LedgerPart
from coordinator.ledger.records import ASSIGNMENT_MOVES, FEDERATION_MOVES, ROUND_MOVES

SHOWN = 20
"""Findings of one rule that are spelled out; more are a number."""

_NAMED = "a.assignment_id, a.round, a.attempt, a.device"
_COUNTS = "('aggregating', 'committed')"

_RULES: tuple[tuple[str, str], ...] = (
    (
        "is reported and has no update",
        f"SELECT {_NAMED} FROM assignments a LEFT JOIN updates u USING (assignment_id) "
        "WHERE a.state = 'reported' AND u.assignment_id IS NULL",
    ),
    (
        "has an update and is not reported",
        f"SELECT {_NAMED} FROM assignments a JOIN updates u USING (assignment_id) WHERE a.state <> 'reported'",
    ),
    (
        "is counted and has no update",
        f"SELECT {_NAMED} FROM contributions c JOIN assignments a USING (assignment_id) "
        "LEFT JOIN updates u USING (assignment_id) WHERE u.assignment_id IS NULL",
    ),
    (
        "is counted more than once",
        # The table's key forbids it; the expression asks the rows, not the index that the key is kept by.
        f"SELECT {_NAMED} FROM assignments a WHERE a.assignment_id IN "
        "(SELECT assignment_id || '' FROM contributions GROUP BY assignment_id || '' HAVING COUNT(*) > 1)",
    ),
    (
        "is counted by a round that was never aggregated",
        f"SELECT {_NAMED} FROM contributions c JOIN assignments a USING (assignment_id) "
        "LEFT JOIN rounds r ON r.round = c.round AND r.attempt = c.attempt "
        f"WHERE r.state IS NULL OR r.state NOT IN {_COUNTS}",
    ),
    (
        "is counted by a round before its own",
        f"SELECT {_NAMED} FROM contributions c JOIN assignments a USING (assignment_id) WHERE c.round < a.round",
    ),
    (
        "is counted and quarantined",
        f"SELECT {_NAMED} FROM contributions c JOIN quarantine q USING (assignment_id) "
        "JOIN assignments a USING (assignment_id)",
    ),
    (
        "is counted or quarantined and waits to be counted",
        f"SELECT {_NAMED} FROM updates u JOIN assignments a USING (assignment_id) WHERE u.waits = 1 AND "
        "(u.assignment_id IN (SELECT assignment_id FROM contributions) "
        "OR u.assignment_id IN (SELECT assignment_id FROM quarantine))",
    ),
    (
        "waits to be counted and its update has no blob row",
        f"SELECT {_NAMED} FROM updates u JOIN assignments a USING (assignment_id) "
        "LEFT JOIN blobs b ON b.digest = u.update_digest WHERE u.waits = 1 AND b.digest IS NULL",
    ),
    (
        "is counted by a round under way and its update has no blob row",
        f"SELECT {_NAMED} FROM contributions c JOIN updates u USING (assignment_id) "
        "JOIN assignments a USING (assignment_id) JOIN rounds r ON r.round = c.round AND r.attempt = c.attempt "
        "LEFT JOIN blobs b ON b.digest = u.update_digest WHERE r.state = 'aggregating' AND b.digest IS NULL",
    ),
    (
        "is unanswered and its weights have no blob row",
        f"SELECT {_NAMED} FROM assignments a LEFT JOIN blobs b ON b.digest = a.weights_digest "
        "WHERE a.state IN ('open', 'accepted') AND b.digest IS NULL",
    ),
    (
        "is of a round that is not there",
        f"SELECT {_NAMED} FROM assignments a LEFT JOIN rounds r ON r.round = a.round AND r.attempt = a.attempt "
        "WHERE r.round IS NULL",
    ),
)
"""What is wrong with an assignment, and the query for those it is wrong with."""


class Audit(LedgerPart):
    """Reads every table, writes none."""

    def findings(self) -> list[str]:
        """What does not add up, a line each with the ids it concerns; empty for a sound ledger.

        Raises:
            LedgerError: the database cannot be read.
        """
        return [*self._database(), *self._states(), *self._rounds(), *self._participants(), *self._assignments()]

    def _database(self) -> Iterator[str]:
        if not self._file.is_sqlite:
            return
        for (line,) in self._file.all("PRAGMA integrity_check"):
            if line != "ok":
                yield f"the file is damaged: {line}"
        for table, row, parent, _ in self._file.all("PRAGMA foreign_key_check"):
            yield f"row {row} of {table} refers to nothing in {parent}"

    def _states(self) -> Iterator[str]:
        for table, name, moves in (
            ("federation", "id", FEDERATION_MOVES),
            ("rounds", "round", ROUND_MOVES),
            ("assignments", "assignment_id", ASSIGNMENT_MOVES),
        ):
            known = ", ".join(f"'{state}'" for state in moves)
            rows = self._file.all(f"SELECT {name}, state FROM {table} WHERE state NOT IN ({known}) ORDER BY 1")
            yield from _shown([f"{table}: {key} is in state '{state}', which there is not" for key, state in rows])

    def _rounds(self) -> Iterator[str]:
        rounds = self._file.all("SELECT round, attempt, state, model_digest FROM rounds ORDER BY round, attempt")
        open_ones = [f"{r[0]}.{r[1]} {r[2]}" for r in rounds if r[2] not in ("committed", "abandoned")]
        if len(open_ones) > 1:
            yield f"{len(open_ones)} attempts are open, at most 1 may be: {', '.join(open_ones[:SHOWN])}"
        committed = [r for r in rounds if r[2] == "committed"]
        for before, after in itertools.pairwise(committed):
            if before[0] == after[0]:
                yield f"round {after[0]} is committed twice, as attempt {before[1]} and {after[1]}"
        for index, attempt, _, model in committed:
            if not model:
                yield f"round {index}, attempt {attempt} is committed without a model"
        if committed and (last := committed[-1])[3]:
            if self._file.one("SELECT 1 FROM blobs WHERE digest = :digest", {"digest": last[3]}) is None:
                yield f"round {last[0]}, attempt {last[1]}: its model {last[3][:12]} has no blob row"
            yield from (
                f"round {r[0]}, attempt {r[1]} is {r[2]}, and round {last[0]} is committed already"
                for r in rounds
                if r[2] not in ("committed", "abandoned") and r[0] <= last[0]
            )
        for key, digest in self._file.all(
            "SELECT export_key, manifest_digest FROM artifacts "
            "WHERE manifest_digest NOT IN (SELECT digest FROM blobs) ORDER BY export_key"
        ):
            yield f"export {key[:12]}: its manifest {digest[:12]} has no blob row"

    def _participants(self) -> Iterator[str]:
        counted: dict[tuple[int, int], list[str]] = {}
        for index, attempt, device in self._file.all(
            "SELECT c.round, c.attempt, a.device FROM contributions c JOIN assignments a USING (assignment_id) "
            "ORDER BY a.device"
        ):
            counted.setdefault((index, attempt), []).append(device)
        for index, attempt, state, participants in self._file.all(
            f"SELECT round, attempt, state, participants FROM rounds WHERE state IN {_COUNTS} ORDER BY round, attempt"
        ):
            named, found = msgspec.json.decode(participants), counted.get((index, attempt), [])
            if named != found:
                missing = sorted((Counter(named) - Counter(found)).elements())
                extra = sorted((Counter(found) - Counter(named)).elements())
                yield (
                    f"round {index}, attempt {attempt} is {state} with {len(named)} participants and counts "
                    f"{len(found)} updates; not counted: {missing[:SHOWN]}, not named: {extra[:SHOWN]}"
                )

    def _assignments(self) -> Iterator[str]:
        for wrong, query in _RULES:
            rows: list[Any] = self._file.all(f"{query} ORDER BY a.round, a.attempt, a.device")
            yield from _shown([f"assignment {row[0]} of {row[3]} in round {row[1]}.{row[2]} {wrong}" for row in rows])


def _shown(findings: list[str]) -> list[str]:
    """The first of ``findings``, and how many more there are."""
    if len(findings) <= SHOWN:
        return findings
    return [*findings[:SHOWN], f"and {len(findings) - SHOWN} more of the last kind"]
