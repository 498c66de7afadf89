"""Bytes by their SHA-256 in a folder: models, weights, updates, artifacts. Which of them matter is the ledger's.

A blob is written to a temporary file, fsynced, renamed, and its folder fsynced, so a name always stands for whole,
durable bytes. Uploads in progress are :mod:`coordinator.blobs.partial`'; a store elsewhere is
:mod:`coordinator.blobs.cached`'s, which builds on this one.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import math
import os
import shutil
import threading
from collections.abc import Collection, Iterator
from io import BufferedReader
from pathlib import Path
from stat import S_ISREG
from typing import BinaryIO, NamedTuple

from coordinator.blobs.files import disk_error, free_bytes, incoming_file, left_half_written
from coordinator.blobs.marks import Marks, whole_file
from coordinator.blobs.out_of_sight import PREFIX, OutOfSight
from coordinator.blobs.partial import PartialBlob
from edge.contracts.errors import ArtifactCorrupt, MessageRejected, StoreFull
from edge.contracts.manifest import check_digest
from edge.contracts.plan import BlobRef
from edge.system.atomic_files import sync, sync_folder

__all__ = ["BlobStore", "PartialBlob", "Stored"]

_CHUNK = 1 << 20


class Stored(NamedTuple):
    """A blob as its store lists it; ``modified`` in seconds since 1970, when it was last put."""

    digest: str
    size: int
    modified: float


class BlobStore:
    """Blobs under ``root/<first two digits>/<digest>``, partial uploads under ``root/partial``.

    Args:
        quota_bytes: what blobs and partial uploads may take together; 0 = as much as the disk gives.
        tidy: remove what killed processes left half-written; False for somebody who only looks.
    """

    def __init__(self, root: Path, *, quota_bytes: int = 0, tidy: bool = True) -> None:
        self.root = root
        self.quota_bytes = quota_bytes
        self._out_of_sight = OutOfSight(root / "incoming")
        if tidy:
            (root / "partial").mkdir(parents=True, exist_ok=True)
            (root / "incoming").mkdir(exist_ok=True)
            for left in self.left_half_written():
                digest = left.name.removeprefix(PREFIX)
                # Of a collector that was killed: collected when it is asked again.
                is_back = digest != left.name and self._out_of_sight.bring_back(BlobStore.path(self, digest))
                if not is_back:
                    left.unlink(missing_ok=True)
        self._lock = threading.Lock()
        self._folders_on_disk: set[str] = set()
        self._marks = Marks()
        self._used = sum(_size_of(path) for path in root.glob("*/*"))

    def put(self, data: bytes | memoryview) -> str:
        """Digest of ``data``, which is on disk when this returns.

        Raises:
            StoreFull: the quota or the disk does not take it; also StoreUnreachable.
        """
        return self._write(io.BytesIO(data), len(data), hashlib.sha256(data).hexdigest())

    def put_file(self, source: Path) -> str:
        """Digest of a file's bytes, copied into the store.

        Raises:
            StoreFull: as :meth:`put`.
        """
        with source.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            file.seek(0)
            return self._write(file, source.stat().st_size, digest)

    def path(self, digest: str) -> Path:
        """Where the blob is (or would be).

        Raises:
            MessageRejected: not a digest; it must never name another file.
        """
        return self.root / check_digest(digest, where="blob store")[:2] / digest

    def __contains__(self, digest: str) -> bool:
        return self.path(digest).is_file() or self._out_of_sight.bring_back(BlobStore.path(self, digest))

    def size(self, digest: str) -> int:
        """Bytes of a stored blob.

        Raises:
            ArtifactCorrupt: not here.
        """
        try:
            return self.path(digest).stat().st_size
        except FileNotFoundError as error:
            raise missing_blob(digest) from error

    def open(self, digest: str) -> BufferedReader:
        """The blob, open for reading.

        Raises:
            ArtifactCorrupt: not here.
        """
        try:
            return self.path(digest).open("rb")
        except FileNotFoundError as error:
            if self._out_of_sight.bring_back(BlobStore.path(self, digest)):
                return self.open(digest)
            raise missing_blob(digest) from error

    def read(self, digest: str, offset: int = 0, length: int = -1) -> bytes:
        """``length`` bytes of a blob from ``offset`` on, fewer at its end; all of it by default.

        Raises:
            ArtifactCorrupt: not here.
        """
        with self.open(digest) as file:
            file.seek(offset)
            return file.read(length)

    def verify(self, digest: str) -> None:
        """Check that the stored bytes still have their digest.

        Raises:
            ArtifactCorrupt: not here, or other bytes.
        """
        with self.open(digest) as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != digest:
            raise ArtifactCorrupt(
                f"blob {digest[:12]} holds bytes of digest {found[:12]}; delete it and fetch it again"
            )

    def check(self, digest: str, *, where: str) -> memoryview:
        """The bytes, read-only. As :meth:`verify`, and quick for what this process has put or checked before."""
        path = self.path(digest)
        if (data := self._marks.mapped(digest, path)) is not None:
            return data
        hint = "apportion fsck RUN_DIR --deep --repair sets it aside, then resume repeats the round"
        try:
            self.verify(digest)
            self._marks.note(digest, path)
            return whole_file(path)
        except ArtifactCorrupt as error:
            raise ArtifactCorrupt(f"{where}: {error}", hint=hint) from error
        except FileNotFoundError as error:  # deleted since, as damaged
            raise ArtifactCorrupt(f"{where}: {missing_blob(digest)}", hint=hint) from error

    def verify_at_rest(self, digest: str) -> None:
        """As :meth:`verify`, of the bytes that last; a store elsewhere has copies beside them."""
        self.verify(digest)

    def delete(self, digest: str) -> None:
        """Removes a blob if it is here; its ledger row is gone already."""
        self.drop_file(BlobStore.path(self, digest))

    def clock(self) -> float:
        """Now, by the clock that tells when a blob was put: a folder on another machine may have another one."""
        os.utime(self.root / "incoming")
        return (self.root / "incoming").stat().st_mtime

    def release(self, digest: str, before: float) -> None:
        """Removes a blob whose ledger row is gone, unless somebody has put it after :meth:`clock` was ``before``."""
        self.delete_if_old(digest, math.nextafter(before, math.inf))

    def delete_if_old(self, digest: str, before: float) -> bool:
        """Deletes a blob that nobody has put since ``before``, seconds since 1970; whether it did."""
        held = self._out_of_sight.take(BlobStore.path(self, digest), before)
        if held is not None:
            self._marks.forget(digest)
            self.drop_file(held)
        return held is not None

    def set_aside(self, digest: str) -> Path:
        """Moves a damaged blob to ``root/damaged``, for whoever wants to see what became of it; where it is now."""
        kept = self.root / "damaged" / check_digest(digest, where="blob store")
        with contextlib.suppress(FileNotFoundError):
            kept.parent.mkdir(exist_ok=True)
            self._marks.forget(digest)
            BlobStore.path(self, digest).rename(kept)
        return kept

    def entries(self) -> Iterator[Stored]:
        """Every stored blob, in no order."""
        for folder in self.root.glob("[0-9a-f][0-9a-f]"):
            for path in folder.iterdir():
                with contextlib.suppress(FileNotFoundError):
                    found = path.stat()
                    yield Stored(path.name, found.st_size, found.st_mtime)

    def claim(self, owner: str, *, is_own: bool) -> None:
        """Adds ``owner``, a run, to those whose blobs are here; what runs share is nobody's to collect as garbage.

        Args:
            is_own: no other run can have used the folder before runs were written down.
        """
        found = self.owners()
        if owner in found:
            return
        if not found and not is_own and next(self.entries(), None) is not None:
            found = ["a run of an earlier release"]
        (self.root / "owners").write_text("".join(f"{name}\n" for name in (*found, owner)), encoding="utf-8")

    def owners(self) -> list[str]:
        """The runs whose blobs are here, as they were claimed."""
        try:
            return (self.root / "owners").read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return []

    def digests(self) -> Iterator[str]:
        """Every stored digest, in no order."""
        return (entry.digest for entry in self.entries())

    def partial(self, assignment_id: str, update: BlobRef) -> PartialBlob:
        """The upload of ``update`` for an assignment, where it stood when the last process ended.

        An assignment has one: what was uploaded for it under another digest is removed.

        Raises:
            MessageRejected: an id or digest that is not one, or sizes that are not counts.
            StoreFull: it cannot fit.
        """
        check_digest(assignment_id, where="assignment id")
        check_digest(update.digest, where=f"assignment {assignment_id[:12]}")
        if not 0 < update.encoded_size <= 2**40 or not 0 < update.size <= 2**40:
            raise MessageRejected(
                f"assignment {assignment_id[:12]}: update of {update.encoded_size} bytes; send its size"
            )
        path = self.root / "partial" / f"{assignment_id}-{update.digest}"
        for other in path.parent.glob(f"{assignment_id}-*"):
            if other != path:
                self.drop_file(other)
        there = path.stat().st_size if path.exists() else 0
        self._check_room(update.encoded_size - min(there, update.encoded_size))
        return PartialBlob(self, path, update)

    def partials(self) -> dict[Path, str]:
        """Files of partial uploads, each with the assignment it is for."""
        folder = self.root / "partial"
        return {path: path.name.partition("-")[0] for path in sorted(folder.iterdir())} if folder.is_dir() else {}

    def drop_partials(self, over: Collection[str]) -> int:
        """Removes the partial uploads for the assignments ``over``; their number. Others may begin meanwhile."""
        dropped = [path for path, assignment_id in self.partials().items() if assignment_id in over]
        for path in dropped:
            self.drop_file(path)
        return len(dropped)

    def left_half_written(self) -> list[Path]:
        """Files of writes whose process is no more."""
        return left_half_written(self.root / "incoming")

    def used_bytes(self) -> int:
        """What everything in the folder takes, damaged blobs too."""
        return self._used

    def room_bytes(self) -> int:
        """Bytes that can be put: what the quota leaves, or the disk where that is less."""
        free = free_bytes(self.root)
        return min(free, max(0, self.quota_bytes - self._used)) if self.quota_bytes else free

    def add_used(self, size: int) -> None:
        """Counts bytes that were written, or removed where ``size`` is negative, by a partial upload."""
        with self._lock:
            self._used += size

    def adopt(self, source: Path, digest: str, size: int) -> None:
        """Makes a fsynced file of this folder, whose bytes have ``digest`` and are counted, the blob.

        Raises:
            StoreFull: as :meth:`put`; ``source`` is still there, unless its new name could not be synced.
        """
        if self._has(digest, size):
            return
        try:
            self._publish(source, BlobStore.path(self, digest))
        except OSError as error:
            if not source.exists():
                self.add_used(-size)
            raise disk_error(error, self.root, size) from error

    def _has(self, digest: str, size: int) -> bool:
        """Whether the blob is here; it counts as put just now, so that nobody takes it for old garbage."""
        path = BlobStore.path(self, digest)
        try:
            if path.stat().st_size != size:
                return False
            os.utime(path)
        except FileNotFoundError:
            return False
        return True

    def _write(self, source: BinaryIO, size: int, digest: str) -> str:
        if self._has(digest, size):
            return digest
        self._check_room(size)
        final = BlobStore.path(self, digest)
        try:
            with incoming_file(self.root / "incoming") as (temporary, file):
                shutil.copyfileobj(source, file, _CHUNK)
                sync(file)
                self._publish(temporary, final)
        except OSError as error:
            raise disk_error(error, self.root, size) from error
        self.add_used(size)
        return digest

    def _publish(self, temporary: Path, final: Path) -> None:
        final.parent.mkdir(exist_ok=True)
        with self._lock:
            # A blob of another size was damaged, and is replaced.
            self._used -= final.stat().st_size if final.is_file() else 0
            temporary.rename(final)
            self._marks.note(final.name, final)
        try:
            sync_folder(final.parent)
            if final.parent.name not in self._folders_on_disk:
                sync_folder(self.root)
                self._folders_on_disk.add(final.parent.name)
        except OSError:
            # A name that may not last must not be found by who puts the blob again: it is written anew.
            with self._lock:
                self._marks.forget(final.name)
                final.unlink(missing_ok=True)
            raise

    def _check_room(self, size: int) -> None:
        if self.quota_bytes and self._used + size > self.quota_bytes:
            raise StoreFull(
                f"{self.root}: {self._used} of {self.quota_bytes} bytes are used and {size} more are needed; "
                "raise store.quota-mb or release old rounds"
            )

    def drop_file(self, path: Path) -> None:
        """Removes a file of this folder if it is there, and stops counting it."""
        with self._lock, contextlib.suppress(FileNotFoundError):
            self._marks.forget(path.name)
            size = path.stat().st_size
            path.unlink()
            self._used -= size


def missing_blob(digest: str) -> ArtifactCorrupt:
    """The error for a blob that should be here."""
    return ArtifactCorrupt(f"blob {digest[:12]} is not in the store; run fsck, or export again")


def _size_of(path: Path) -> int:
    try:
        found = path.stat()
    except FileNotFoundError:
        return 0  # another process has just removed it
    return found.st_size if S_ISREG(found.st_mode) else 0
