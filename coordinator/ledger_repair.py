"""What ``apportion fsck --repair`` may change in a ledger: blobs that are damaged, and the attempt that needs them.

An attempt that has lost one of its blobs is given up before anything of it is committed, and its round is planned again
as the next attempt: what was counted in it is counted in none, and what other attempts had sent waits as it did before.
"""

from __future__ import annotations

from collections.abc import Sequence

from coordinator.ledger_file import LedgerPart, statement
from edge.contracts.codec import encode_json
from edge.contracts.errors import LedgerError

DAMAGED = "store-damaged"
"""The code of an assignment that was open in an attempt whose blobs were damaged."""

_OF_ATTEMPT = "SELECT assignment_id FROM assignments WHERE round = :round AND attempt = :attempt"


class RepairTables(LedgerPart):
    """Blobs and attempts that are given up."""

    def forget_blobs(self, digests: Sequence[str]) -> None:
        """Removes the rows of blobs that are no more; an update among them waits for no round any longer."""
        with self._file.transaction() as sql:
            for digest in digests:
                for change in (
                    "UPDATE updates SET waits = 0 WHERE waits = 1 AND update_digest = :digest",
                    "DELETE FROM artifacts WHERE manifest_digest = :digest",
                    "DELETE FROM blobs WHERE digest = :digest",
                ):
                    sql.execute(statement(change), {"digest": digest})

    def give_up_attempt(self, round_index: int, attempt: int, *, reason: str) -> None:
        """Abandons an open attempt, in whichever state: its round follows with the next one.

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
                    "UPDATE rounds SET state = 'abandoned', participants = :nobody "
                    "WHERE round = :round AND attempt = :attempt"
                ),
                {"nobody": encode_json([]), **here},
            )
            sql.execute(
                statement(
                    "UPDATE assignments SET state = 'expired', code = :code, reason = :reason "
                    "WHERE round = :round AND attempt = :attempt AND state IN ('open', 'accepted')"
                ),
                {"code": DAMAGED, "reason": reason, **here},
            )
