"""What a run has in store: blobs and artifacts. Part of the ledger.

Weights, updates and models are released when no open round needs them; a run would otherwise keep every update.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from sqlalchemy import Connection

from coordinator.ledger.database import LedgerPart, statement
from edge.contracts.errors import LedgerError

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


class Blobs(LedgerPart):
    """What is stored, by its digest."""

    _released_below = 0
    """Blobs of rounds before this one were released by this process; a run's history need not be read every round."""

    def add(self, digest: str, size: int) -> None:
        """Makes a stored blob known; adding it again changes nothing."""
        with self._file.transaction() as sql:
            insert_blob(sql, digest, size)

    def sizes(self) -> dict[str, int]:
        """Digest -> size of every known blob; a stored blob that is not among them is garbage."""
        return {digest: size for digest, size in self._file.all("SELECT digest, size FROM blobs")}

    def release(self, before_round: int) -> tuple[str, ...]:
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

    def forget(self, digests: Sequence[str]) -> None:
        """Removes the rows of blobs that are no more; an update among them waits for no round any longer."""
        with self._file.transaction() as sql:
            for digest in digests:
                for change in (
                    "UPDATE updates SET waits = 0 WHERE waits = 1 AND update_digest = :digest",
                    "DELETE FROM artifacts WHERE manifest_digest = :digest",
                    "DELETE FROM blobs WHERE digest = :digest",
                ):
                    sql.execute(statement(change), {"digest": digest})


class Artifacts(LedgerPart):
    """What was exported, by export key."""

    def add(self, export_key: str, manifest_digest: str) -> None:
        """Records which manifest an export key gave; the manifest's blob is known already.

        Raises:
            LedgerError: unknown blob, or another manifest under that key.
        """
        known = self.find(export_key)
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

    def find(self, export_key: str) -> str | None:
        """Digest of the manifest for ``export_key``, or None when this run has not exported it."""
        row = self._file.one("SELECT manifest_digest FROM artifacts WHERE export_key = :key", {"key": export_key})
        return None if row is None else str(row[0])


def insert_blob(sql: Connection, digest: str, size: int) -> None:
    """Makes a blob known inside the caller's transaction."""
    sql.execute(
        statement("INSERT INTO blobs VALUES (:digest, :size, :now) ON CONFLICT (digest) DO NOTHING"),
        {"digest": digest, "size": size, "now": time.time()},
    )
