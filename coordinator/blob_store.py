"""Bytes by their SHA-256 in a folder: models, weights, updates, artifacts. Which of them matter is the ledger's.

A blob is written to a temporary file, fsynced, renamed, and its folder fsynced, so a name always stands for whole,
durable bytes. Uploads grow in partial files that survive a restart and become blobs when their digest is right.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import shutil
import threading
import uuid
from collections.abc import Collection, Iterator
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO

from edge.contracts.errors import ArtifactCorrupt, MessageRejected, StoreFull
from edge.contracts.manifest import check_digest
from edge.contracts.plan import BlobRef

_CHUNK = 1 << 20


class BlobStore:
    """Blobs under ``root/<first two digits>/<digest>``, partial uploads under ``root/partial``.

    Args:
        quota_bytes: what blobs and partial uploads may take together; 0 = as much as the disk gives.
    """

    def __init__(self, root: Path, *, quota_bytes: int = 0) -> None:
        self.root = root
        self.quota_bytes = quota_bytes
        (root / "partial").mkdir(parents=True, exist_ok=True)
        (root / "incoming").mkdir(exist_ok=True)
        # What a killed process left half-written has no name anyone could ask for.
        for left in (root / "incoming").iterdir():
            left.unlink()
        self._lock = threading.Lock()
        self._used = sum(path.stat().st_size for path in root.rglob("*") if path.is_file())

    def put(self, data: bytes | memoryview) -> str:
        """Digest of ``data``, which is on disk when this returns.

        Raises:
            StoreFull: the quota or the disk does not take it.
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
        return self.path(digest).is_file()

    def size(self, digest: str) -> int:
        """Bytes of a stored blob.

        Raises:
            ArtifactCorrupt: not here.
        """
        try:
            return self.path(digest).stat().st_size
        except FileNotFoundError as error:
            raise _missing(digest) from error

    def open(self, digest: str) -> BufferedReader:
        """The blob, open for reading.

        Raises:
            ArtifactCorrupt: not here.
        """
        try:
            return self.path(digest).open("rb")
        except FileNotFoundError as error:
            raise _missing(digest) from error

    def read(self, digest: str, offset: int = 0, length: int = -1) -> bytes:
        """``length`` bytes of a blob from ``offset`` on, fewer at its end; all of it by default.

        Raises:
            ArtifactCorrupt: not here.
        """
        with self.open(digest) as file:
            file.seek(offset)
            return file.read(length)

    def verify(self, digest: str) -> None:
        """Nothing when the stored bytes still have their digest.

        Raises:
            ArtifactCorrupt: not here, or other bytes.
        """
        with self.open(digest) as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != digest:
            raise ArtifactCorrupt(
                f"blob {digest[:12]} holds bytes of digest {found[:12]}; delete it and fetch it again"
            )

    def delete(self, digest: str) -> None:
        """Removes a blob if it is here; its ledger row is gone already."""
        path = self.path(digest)
        with self._lock, contextlib.suppress(FileNotFoundError):
            size = path.stat().st_size
            path.unlink()
            self._used -= size

    def digests(self) -> Iterator[str]:
        """Every stored digest, in no order."""
        for folder in self.root.glob("[0-9a-f][0-9a-f]"):
            yield from (path.name for path in folder.iterdir())

    def garbage(self, known: Collection[str]) -> tuple[str, ...]:
        """Stored digests that are not ``known``, sorted: blobs whose row was never written, or was removed."""
        return tuple(sorted(set(self.digests()).difference(known)))

    def partial(self, assignment_id: str, update: BlobRef) -> PartialBlob:
        """The upload of ``update`` for an assignment, where it stood when the last process ended.

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
        there = path.stat().st_size if path.exists() else 0
        self._check_room(update.encoded_size - min(there, update.encoded_size))
        return PartialBlob(self, path, update)

    def drop_partials(self) -> int:
        """Removes every partial upload, for when no assignment is open; their number."""
        count = 0
        for path in (self.root / "partial").iterdir():
            self._add_used(-path.stat().st_size)
            path.unlink()
            count += 1
        return count

    def _write(self, source: BinaryIO, size: int, digest: str) -> str:
        final = self.path(digest)
        if final.is_file():
            return digest
        self._check_room(size)
        temporary = self.root / "incoming" / uuid.uuid4().hex
        try:
            with temporary.open("wb") as file:
                shutil.copyfileobj(source, file, _CHUNK)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            temporary.unlink(missing_ok=True)
            raise StoreFull(f"{self.root}: {size} bytes not written ({error}); free some disk space") from error
        self._publish(temporary, final)
        self._add_used(size)
        return digest

    def _publish(self, temporary: Path, final: Path) -> None:
        final.parent.mkdir(exist_ok=True)
        temporary.rename(final)
        _sync_folder(final.parent)
        _sync_folder(self.root)

    def _check_room(self, size: int) -> None:
        if self.quota_bytes and self._used + size > self.quota_bytes:
            raise StoreFull(
                f"{self.root}: {self._used} of {self.quota_bytes} bytes are used and {size} more are needed; "
                "raise store.quota-mb or release old rounds"
            )

    def _add_used(self, size: int) -> None:
        with self._lock:
            self._used += size


class PartialBlob:
    """An upload in progress; made by :meth:`BlobStore.partial`, written by one thread."""

    def __init__(self, store: BlobStore, path: Path, update: BlobRef) -> None:
        self._store = store
        self._path = path
        self.update = update
        if self.received > update.encoded_size:
            self.discard()

    @property
    def received(self) -> int:
        """Encoded bytes that are here, from the first on without a gap."""
        return self._path.stat().st_size if self._path.exists() else 0

    @property
    def is_complete(self) -> bool:
        """Every encoded byte is here; they are not checked yet."""
        return self.received == self.update.encoded_size

    def write(self, offset: int, data: bytes) -> int:
        """Appends ``data`` when it is the next piece, ignores it otherwise; ``received`` either way.

        A repeated or out-of-order block is normal after a reconnect: the sender is told where to go on.

        Raises:
            MessageRejected: it would pass the announced size.
            StoreFull: the disk does not take it.
        """
        received = self.received
        if offset != received:
            return received
        if offset + len(data) > self.update.encoded_size:
            raise MessageRejected(
                f"update {self.update.digest[:12]}: bytes up to {offset + len(data)}, "
                f"{self.update.encoded_size} were announced; offer it again"
            )
        try:
            with self._path.open("ab") as file:
                file.write(data)
        except OSError as error:
            raise StoreFull(f"{self._path.parent}: block not written ({error}); free some disk space") from error
        self._store._add_used(len(data))
        return received + len(data)

    def finish(self) -> str:
        """The digest of the update, decoded, checked and in the store.

        Raises:
            ArtifactCorrupt: incomplete, undecodable, of another size or digest; the partial file is gone, start again.
            StoreFull: no room for the decoded bytes.
        """
        try:
            if not self.is_complete:
                raise ArtifactCorrupt(
                    f"update {self.update.digest[:12]}: {self.received} of {self.update.encoded_size} bytes; "
                    "send it again"
                )
            if self.update.encoding == "zstd":
                return self._finish_decoded(self._unpacked())
            return self._finish_in_place()
        finally:
            self.discard()

    def discard(self) -> None:
        """Forgets what has arrived."""
        self._store._add_used(-self.received)
        self._path.unlink(missing_ok=True)

    def _finish_in_place(self) -> str:
        """Renames the partial file: raw bytes are the blob already, and an update can be as large as the model."""
        with self._path.open("rb+") as file:
            self._check(hashlib.file_digest(file, "sha256").hexdigest(), self.received)
            os.fsync(file.fileno())
        final = self._store.path(self.update.digest)
        if not final.is_file():
            # The bytes stay counted: discard() finds no partial file to subtract.
            self._store._publish(self._path, final)
        return self.update.digest

    def _finish_decoded(self, data: bytes) -> str:
        self._check(hashlib.sha256(data).hexdigest(), len(data))
        return self._store.put(data)

    def _unpacked(self) -> bytes:
        import zstandard

        try:
            # Bounded by the announced size: a small file may otherwise unpack to all of the memory.
            stream = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(self._path.read_bytes()))
            return bytes(stream.read(self.update.size + 1))
        except zstandard.ZstdError as error:
            raise ArtifactCorrupt(f"update {self.update.digest[:12]}: not zstd ({error}); send it again") from error

    def _check(self, digest: str, size: int) -> None:
        if size != self.update.size:
            raise ArtifactCorrupt(
                f"update {self.update.digest[:12]}: {size} bytes decoded so far, {self.update.size} announced; "
                "send it again"
            )
        if digest != self.update.digest:
            raise ArtifactCorrupt(f"update {self.update.digest[:12]}: other bytes arrived; send it again")


def _missing(digest: str) -> ArtifactCorrupt:
    return ArtifactCorrupt(f"blob {digest[:12]} is not in the store; run fsck, or export again")


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
