"""A byte of a stored blob that is another one, as a failing disk leaves it."""

from __future__ import annotations

from pathlib import Path

from coordinator.ledger.ledger import Ledger


def flip(run_dir: Path, sort: str) -> bool:
    """Change the middle byte of the newest blob of ``sort`` in the run's store; whether there is one.

    Args:
        sort: of :data:`tests.chaos.faults.BLOBS`.
    """
    if not (run_dir / "ledger.sqlite").exists():
        return False
    for digest in reversed(_digests(run_dir, sort)):
        path = run_dir / "blobs" / digest[:2] / digest
        if digest and path.exists():
            with path.open("r+b") as file:
                middle = path.stat().st_size // 2
                file.seek(middle)
                byte = file.read(1)[0]
                file.seek(middle)
                file.write(bytes([byte ^ 0x40]))
            return True
    return False


def _digests(run_dir: Path, sort: str) -> list[str]:
    """Digests of ``sort`` in the order they came."""
    with Ledger.open(run_dir / "ledger.sqlite") as ledger:
        rounds = ledger.rounds.all()
        if sort == "model":
            return [r.model_digest for r in rounds]
        if sort == "update":
            return [u.update_digest for r in rounds for u in ledger.updates.of_attempt(r.round, r.attempt)]
        assignments = [a for r in rounds for a in ledger.assignments.of_attempt(r.round, r.attempt)]
        return [a.weights_digest if sort == "weights" else a.artifact_digest for a in assignments]
