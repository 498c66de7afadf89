"""What a store holds that no row of the ledger names: left by crashes, and by uploads whose round is over.

A blob is put before its row is written, and a row removed before its file. So a blob without a row is garbage only when
it is old: a young one may be about to get its row, from this coordinator or from one that shares ledger and store.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from coordinator.blobs.blob_store import BlobStore, Stored
from coordinator.blobs.cached import CachedBlobs
from coordinator.blobs.opening import owner_of
from coordinator.ledger.ledger import Ledger
from edge.contracts.plan import read_order

GRACE_S = 3600.0
"""How long a blob, or an upload that does not grow, may be without a row that names it."""


@dataclass(frozen=True)
class Garbage:
    """What may be deleted.

    Attributes:
        blobs: whole blobs without a row.
        uploads: files of uploads whose assignment is not open.
        half_written: files of writes whose process is no more.
        copies: copies here of blobs that are no longer where they were put.
        young: blobs and uploads that would be garbage, but for their age.
        size: bytes of all but the young ones.
    """

    blobs: tuple[Stored, ...] = ()
    uploads: tuple[Path, ...] = ()
    half_written: tuple[Path, ...] = ()
    copies: tuple[Stored, ...] = ()
    young: int = 0
    size: int = 0

    @property
    def count(self) -> int:
        """Things that may be deleted."""
        return len(self.blobs) + len(self.uploads) + len(self.half_written) + len(self.copies)


def find_garbage(ledger: Ledger, blobs: BlobStore, *, grace_s: float = GRACE_S) -> Garbage:
    """The garbage in ``blobs``, which belong to ``ledger`` alone; nothing is changed."""
    before = time.time() - grace_s
    # The store first: whatever got its row after it was listed is found among the rows.
    stored, uploads = list(blobs.entries()), blobs.partials()
    known = _named(ledger)
    nameless = sorted(entry for entry in stored if entry.digest not in known)
    there = {entry.digest for entry in stored}
    copies = [e for e in blobs.copies() if e.digest not in there] if isinstance(blobs, CachedBlobs) else []
    ended = [path for path, assignment_id in uploads.items() if not _is_open(ledger, assignment_id)]
    old_blobs = tuple(entry for entry in nameless if entry.modified < before)
    old_copies = tuple(entry for entry in copies if entry.modified < before)
    old_uploads = tuple(path for path in ended if _modified(path) < before)
    half_written = tuple(path for path in blobs.left_half_written() if _modified(path) < before)
    return Garbage(
        old_blobs,
        old_uploads,
        half_written,
        old_copies,
        young=len(nameless) + len(copies) + len(ended) - len(old_blobs) - len(old_copies) - len(old_uploads),
        size=sum(entry.size for entry in (*old_blobs, *old_copies))
        + sum(path.stat().st_size for path in (*old_uploads, *half_written) if path.exists()),
    )


def collect_garbage(ledger: Ledger, blobs: BlobStore, *, grace_s: float = GRACE_S) -> Garbage:
    """Deletes the garbage in ``blobs``; what it was.

    Args:
        grace_s: 0 where nobody else can be writing to ledger or store.
    """
    before = time.time() - grace_s
    found = find_garbage(ledger, blobs, grace_s=grace_s)
    for entry in found.blobs:
        blobs.delete_if_old(entry.digest, before)
    if isinstance(blobs, CachedBlobs):
        for entry in found.copies:
            blobs.drop_copy(entry.digest)
    for path in (*found.uploads, *found.half_written):
        blobs.drop_file(path)
    return found


def is_collectable(ledger: Ledger, blobs: BlobStore) -> bool:
    """Whether what has no row in ``ledger`` is nobody's: no other run keeps its blobs there."""
    return set(blobs.owners()) <= {owner_of(ledger.federation())}


def collect_at_start(ledger: Ledger, blobs: BlobStore, *, is_alone: bool) -> str:
    """Deletes the garbage that an earlier process of a run left; what it was in words, empty when there was none.

    Args:
        is_alone: no other process can have the ledger open, so that nothing is too young.
    """
    if not is_collectable(ledger, blobs):
        return ""
    found = collect_garbage(ledger, blobs, grace_s=0.0 if is_alone else GRACE_S)
    return f"garbage of an earlier start collected: {found.count} files, {found.size} bytes" if found.count else ""


def _named(ledger: Ledger) -> set[str]:
    """Digests of every row, and of what an open attempt ordered."""
    known = set(ledger.blobs.sizes())
    attempt = ledger.rounds.open()
    for entry in ledger.assignments.of_attempt(attempt.round, attempt.attempt) if attempt is not None else ():
        order = read_order(entry.order)
        known |= {ref.digest for ref in order.blobs}
    return known


def _is_open(ledger: Ledger, assignment_id: str) -> bool:
    entry = ledger.assignments.find(assignment_id)
    return entry is not None and entry.state in ("open", "accepted")


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return time.time()
