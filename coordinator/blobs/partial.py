"""Uploads in progress: files that grow block by block, survive a restart, and become blobs when their digest is right.

A disk that is full, or a store out of reach, costs a partial upload nothing: it goes on later from where it was.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
from pathlib import Path
from typing import Protocol

from coordinator.blobs.files import disk_error
from edge.contracts.errors import ArtifactCorrupt, MessageRejected
from edge.contracts.plan import BlobRef
from edge.system.atomic_files import sync


class BlobSink(Protocol):
    """Where the bytes of a finished upload go: :class:`coordinator.blobs.blob_store.BlobStore`."""

    def add_used(self, size: int) -> None:
        """Count bytes that were written, or removed where ``size`` is negative."""

    def adopt(self, path: Path, digest: str, size: int) -> object:
        """Take the checked file at ``path`` as the blob ``digest``."""

    def put(self, data: bytes) -> str:
        """Store ``data``; its digest."""


class PartialBlob:
    """An upload in progress; made by :meth:`coordinator.blobs.blob_store.BlobStore.partial`, written by one thread."""

    def __init__(self, store: BlobSink, path: Path, update: BlobRef) -> None:
        self._store = store
        self._path = path
        self.update = update
        self._received = self._on_disk()
        if self.received > update.encoded_size:
            self.discard()

    def _on_disk(self) -> int:
        return self._path.stat().st_size if self._path.exists() else 0

    @property
    def received(self) -> int:
        """Encoded bytes that are here, from the first on without a gap."""
        return self._received

    @property
    def is_complete(self) -> bool:
        """Every encoded byte is here; they are not checked yet."""
        return self.received == self.update.encoded_size

    def write(self, offset: int, data: bytes) -> int:
        """Appends ``data`` when it is the next piece, ignores it otherwise; ``received`` either way.

        A repeated or out-of-order block is normal after a reconnect: the sender is told where to go on.

        Raises:
            MessageRejected: it would pass the announced size.
            StoreFull: the disk does not take it, and nothing of ``data`` is kept; also StoreUnreachable.
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
                if file.tell() != received:  # it was dropped since
                    self._received = file.tell()
                    return self._received
                file.write(data)
        except OSError as error:
            with contextlib.suppress(OSError):
                # Part of a block may have fitted; the sender goes on from the last whole one.
                os.truncate(self._path, received)
            raise disk_error(error, self._path.parent, self.update.encoded_size - received) from error
        self._store.add_used(len(data))
        self._received += len(data)
        return self._received

    def finish(self) -> str:
        """The digest of the update, decoded, checked and in the store.

        Raises:
            ArtifactCorrupt: incomplete, undecodable, of another size or digest; the partial file is gone, start again.
            StoreFull: no room for the decoded bytes; also StoreUnreachable. The partial file stays: try again later. It
                goes where the disk did not take it in the end: what is left of it cannot be told, and it is sent anew.
        """
        self._received = self._on_disk()
        try:
            if not self.is_complete:
                raise ArtifactCorrupt(
                    f"update {self.update.digest[:12]}: {self.received} of {self.update.encoded_size} bytes; "
                    "send it again"
                )
            if self.update.encoding == "zstd":
                digest = self._finish_decoded(self._unpacked())
            else:
                digest = self._finish_in_place()
        except ArtifactCorrupt:
            self.discard()
            raise
        self.discard()
        return digest

    def discard(self) -> None:
        """Forgets what has arrived."""
        self._store.add_used(-self._on_disk())
        self._path.unlink(missing_ok=True)
        self._received = 0

    def _finish_in_place(self) -> str:
        """Renames the partial file: raw bytes are the blob already, and an update can be as large as the model."""
        with self._path.open("rb+") as file:
            self._check(hashlib.file_digest(file, "sha256").hexdigest(), self.received)
            try:
                sync(file)
            except OSError as error:
                self.discard()
                raise disk_error(error, self._path.parent, self.update.size) from error
        self._store.adopt(self._path, self.update.digest, self.update.size)
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
