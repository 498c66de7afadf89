"""Blobs that are kept elsewhere, with copies here: callers map files into memory, so a blob that is used is a file.

Nothing is stored before it is there: a blob is written here, sent, and only then has its name. Copies that were not
used lately make room for others; the folder's quota is then that of the copies. What is there is listed once, when a
store is opened, and kept in mind; what another coordinator adds is found by its name, or by :meth:`refresh`.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path

from coordinator.blobs.blob_store import BlobStore, Stored
from coordinator.blobs.files import disk_error, incoming_file
from coordinator.blobs.remote import RemoteFolder, fetched
from edge.contracts.errors import ArtifactCorrupt, StoreFull, StoreUnreachable
from edge.system.atomic_files import sync

log = logging.getLogger("apportion.coordinator")

IN_USE_S = 10.0
"""A copy that was asked for so lately may not be open yet, and is not removed."""

FRESH_S = 1200.0
"""A blob put again is sent again when it is older there, so that nobody takes it for old garbage."""


class CachedBlobs(BlobStore):
    """Blobs of ``remote``, with copies under ``root``; everything else as :class:`BlobStore`."""

    def __init__(self, root: Path, remote: RemoteFolder, *, quota_bytes: int = 0, tidy: bool = True) -> None:
        self.remote = remote
        self._there: dict[str, int] = {}
        self._put_at: dict[str, float] = {}
        self._used_at: OrderedDict[str, float] = OrderedDict()
        super().__init__(root, quota_bytes=quota_bytes, tidy=tidy)
        for entry in sorted(self.copies(), key=lambda entry: entry.modified):
            self._used_at[entry.digest] = -IN_USE_S
        self.refresh()

    def refresh(self) -> None:
        """Lists what is there again, for what other coordinators put and deleted."""
        self._there = {entry.digest: entry.size for entry in self.remote.entries()}

    def path(self, digest: str) -> Path:
        """A copy of the blob, fetched if it is not here; a file for at least some seconds: open it at once.

        Raises:
            ArtifactCorrupt: not there, or other bytes are.
            StoreFull: no room for it; also StoreUnreachable, and MessageRejected for what is no digest.
        """
        copy = super().path(digest)
        with self._lock:
            self._used_at[digest] = time.monotonic()
            self._used_at.move_to_end(digest)
        if not copy.is_file():
            self._fetch(digest, copy)
        return copy

    def __contains__(self, digest: str) -> bool:
        super().path(digest)
        return digest in self._there

    def size(self, digest: str) -> int:
        """As :meth:`BlobStore.size`."""
        super().path(digest)
        return self._there[digest] if digest in self._there else self.remote.size(digest)

    def open(self, digest: str) -> BufferedReader:
        """As :meth:`BlobStore.open`, fetched if it is not here."""
        return self.path(digest).open("rb")

    def verify(self, digest: str) -> None:
        """Check that the copy that is used has its digest; one that does not is fetched again.

        Raises:
            ArtifactCorrupt: not there, or other bytes are.
        """
        try:
            super().verify(digest)
        except ArtifactCorrupt:
            self.drop_file(super().path(digest))
            super().verify(digest)

    def verify_at_rest(self, digest: str) -> None:
        """Check that the blob has its digest there; reads all of it.

        Raises:
            ArtifactCorrupt: not there, or other bytes are.
        """
        found = self.remote.read_into(digest, None)
        if found != digest:
            raise ArtifactCorrupt(f"blob {digest[:12]} at {self.remote.url} holds bytes of digest {found[:12]}")

    def delete(self, digest: str) -> None:
        """Removes a blob here and there. One that cannot be removed there now is garbage, and collected later."""
        self.drop_copy(digest)
        self._there.pop(digest, None)
        self._put_at.pop(digest, None)
        try:
            self.remote.delete(digest)
        except StoreUnreachable as error:
            log.warning("blob %s is left for garbage collection: %s", digest[:12], error)

    def release(self, digest: str, before: float) -> None:
        """As :meth:`delete`: a blob that is put again may be sent or not, so that its age there says nothing."""
        self.delete(digest)

    def delete_if_old(self, digest: str, before: float) -> bool:
        """As :meth:`BlobStore.delete_if_old`. Between the question how old it is and its end lies one request."""
        try:
            if self.remote.modified(digest) >= before:
                return False
        except ArtifactCorrupt:
            return False
        self.delete(digest)
        return True

    def claim(self, owner: str, *, is_own: bool) -> None:
        """Marks the address as the run's.

        Raises:
            ConfigError: it is another run's.
        """
        self.remote.claim(owner)

    def owners(self) -> list[str]:
        """The run whose blobs are there."""
        return self.remote.owners()

    def drop_copy(self, digest: str) -> None:
        """Removes the copy here, if there is one."""
        super().delete(digest)
        with self._lock:
            self._used_at.pop(digest, None)

    def set_aside(self, digest: str) -> Path:
        """As :meth:`BlobStore.set_aside`, here and there; whichever is still whole goes too."""
        self.remote.set_aside(digest)
        self._there.pop(digest, None)
        return super().set_aside(digest)

    def entries(self) -> Iterator[Stored]:
        """Every blob there, in no order; asks again."""
        return self.remote.entries()

    def copies(self) -> Iterator[Stored]:
        """Every copy here."""
        return super().entries()

    def room_bytes(self) -> int:
        """As :meth:`BlobStore.room_bytes`, once every copy that can be fetched again has made room."""
        removable = sum(entry.size for entry in self.copies() if entry.digest in self._there)
        room = super().room_bytes() + removable
        return min(room, self.quota_bytes) if self.quota_bytes else room

    def _has(self, digest: str, size: int) -> bool:
        if self._there.get(digest) != size:
            return False
        try:
            now = time.time()
            if digest not in self._put_at:
                self._put_at[digest] = self.remote.modified(digest)
            return now - self._put_at[digest] < FRESH_S
        except ArtifactCorrupt:
            self._there.pop(digest, None)
            return False

    def _publish(self, temporary: Path, final: Path) -> None:
        size = temporary.stat().st_size
        self.remote.upload(temporary, final.name)
        super()._publish(temporary, final)
        with self._lock:
            self._used_at[final.name] = time.monotonic()
        self._there[final.name], self._put_at[final.name] = size, time.time()

    def _fetch(self, digest: str, copy: Path) -> None:
        try:
            size = self.remote.size(digest)
        except ArtifactCorrupt:
            self._there.pop(digest, None)
            raise
        self._check_room(size)
        try:
            with incoming_file(self.root / "incoming") as (temporary, file):
                fetched(self.remote, digest, file)
                sync(file)
                BlobStore._publish(self, temporary, copy)
        except OSError as error:
            raise disk_error(error, self.root, size) from error
        self.add_used(size)
        self._there[digest] = size

    def _check_room(self, size: int) -> None:
        if not self.quota_bytes:
            return
        for digest in self._removable():
            if self._used + size <= self.quota_bytes:
                return
            self.drop_copy(digest)
        try:
            super()._check_room(size)
        except StoreFull as error:
            raise StoreFull(
                f"{self.root}: {self._used} of {self.quota_bytes} bytes hold uploads and copies in use, {size} more "
                "are needed; raise store.quota-mb"
            ) from error

    def _removable(self) -> list[str]:
        """Copies that are there too and were not used lately, the longest unused first."""
        with self._lock:
            now = time.monotonic()
            return [
                digest
                for digest, used in self._used_at.items()
                if digest in self._there and (used < 0 or now - used >= IN_USE_S)
            ]
