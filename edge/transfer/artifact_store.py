"""Blobs on a device's disk by the SHA-256 of their bytes, within a quota; partial ones are resumed.

::

    <root>/blobs/<digest>              complete and verified when written
    <root>/partial/<digest>.<encoding> bytes received so far
    <root>/lock                        held by the agent that uses the store
    <root>/work/...                    finished assignments (:mod:`edge.supervisor.finished_work`), counted, never
    evicted
    <root>/symbols/...                 the owner's texts, tokenised (:mod:`edge.language.text_windows`), counted, never
    evicted
    <root>/features/<key>              of frozen blocks (:mod:`edge.training.feature_cache`), evicted as blobs are
    <root>/releases/...                models for the owner (:mod:`edge.releases.installed`), counted, never evicted

A blob is written to a temporary file, synced, renamed, and its folder synced: after a power cut it is there or it is
not. The least recently used blob is evicted first; pinned ones never are.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from edge.contracts.errors import ArtifactCorrupt, ConfigError, StoreFull
from edge.contracts.manifest import check_digest
from edge.contracts.plan import BlobRef
from edge.system.atomic_files import publish_file, sync, write_whole

CHUNK_BYTES = 1 << 18
HANDOVER_S = 10.0
DISK_RESERVE_BYTES = 16 << 20
"""Never fill a device's disk to the last byte: its other programs need some."""


class ArtifactStore:
    """The blobs of one agent. Whoever opens it holds it alone until :meth:`close` or the end of the process.

    Args:
        root: folder, created when missing.
        quota_bytes: what everything below ``root`` may take; 0 = as much as the disk has.
        wait_s: how long to wait for another agent that still holds it, as after a coordinator was killed.

    Raises:
        ConfigError: another agent holds it.
    """

    def __init__(self, root: Path, *, quota_bytes: int = 0, wait_s: float = HANDOVER_S) -> None:
        self.root = root
        self.quota_bytes = quota_bytes
        root.mkdir(parents=True, exist_ok=True)
        self._lock = _hold(root / "lock", wait_s)
        self._blobs, self._partial = root / "blobs", root / "partial"
        self.symbols, self.features = root / "symbols", root / "features"
        for folder in (self._blobs, self._partial, root / "work"):
            folder.mkdir(parents=True, exist_ok=True)
        for leftover in self._blobs.glob("*.tmp"):
            leftover.unlink()
        self._pins: set[str] = set()

    def close(self) -> None:
        """Let another agent have it."""
        self._lock.close()

    def pin(self, digest: str) -> None:
        """Keep ``digest`` (present or still to come) from eviction."""
        self._pins.add(digest)

    def unpin_all(self) -> None:
        """Every blob may be evicted again."""
        self._pins.clear()

    def path(self, digest: str) -> Path:
        """Where the blob ``digest`` is or will be."""
        return self._blobs / check_digest(digest, where="store")

    def has(self, digest: str) -> bool:
        """Whether the blob is there; being asked for counts as use."""
        try:
            os.utime(self.path(digest))
        except FileNotFoundError:
            return False
        return True

    def verify(self, digest: str) -> Path:
        """The path of the blob after reading it through.

        Raises:
            ArtifactCorrupt: its bytes have another digest; the blob has been dropped.
        """
        path = self.path(digest)
        found = file_digest(path)
        if found != digest:
            self.drop(digest)
            raise ArtifactCorrupt(f"blob {digest[:12]} on disk has digest {found[:12]}; it was dropped, fetch it again")
        return path

    def put(self, data: bytes) -> str:
        """The digest of ``data``, stored.

        Raises:
            StoreFull: no room.
        """
        digest = hashlib.sha256(data).hexdigest()
        if not self.has(digest):
            self.reserve(len(data))
            with self._full_is_told(digest):
                write_whole(self.path(digest), data)
        return digest

    def drop(self, digest: str) -> None:
        """Forget the blob and what was received of it."""
        self.path(digest).unlink(missing_ok=True)
        for partial in self._partial.glob(f"{digest}.*"):
            partial.unlink()

    def partial(self, ref: BlobRef) -> Path:
        """The file that holds the first encoded bytes of ``ref``; made when missing.

        Raises:
            StoreFull: no room for its name.
        """
        check_digest(ref.digest, where="store")
        path = self._partial / f"{ref.digest}.{ref.encoding}"
        with self._full_is_told(ref.digest):
            path.touch()
        return path

    @contextlib.contextmanager
    def _full_is_told(self, digest: str) -> Iterator[None]:
        """A blob that is not on disk has no name when the context ends, and the failure is one of the store's.

        Raises:
            StoreFull: the disk takes no more, or failed.
        """
        try:
            yield
        except OSError as error:
            self.path(digest).unlink(missing_ok=True)
            raise StoreFull(
                f"store {self.root}: blob {digest[:12]} not written ({error.strerror or error}); free disk space, or "
                "see to the disk"
            ) from error

    def complete(self, ref: BlobRef) -> Path:
        """The blob made of the partial file of ``ref``: decoded, verified and in place.

        Raises:
            ArtifactCorrupt: it does not decode or has another digest or size; the partial file is dropped.
            StoreFull: no room for the decoded bytes.
        """
        with self._full_is_told(ref.digest):
            self._complete(ref)
        return self.path(ref.digest)

    def _complete(self, ref: BlobRef) -> None:
        partial = self.partial(ref)
        temporary = self._blobs / f"{ref.digest}.tmp"
        try:
            if ref.encoding == "raw":
                os.replace(partial, temporary)
            else:
                self.reserve(ref.size)
                _decode_zstd(partial, temporary, ref)
            with temporary.open("rb+") as file:
                sync(file)
            found = file_digest(temporary)
            if found != ref.digest or temporary.stat().st_size != ref.size:
                raise ArtifactCorrupt(
                    f"blob {ref.digest[:12]} of {ref.size} bytes arrived with digest {found[:12]} and "
                    f"{temporary.stat().st_size} bytes; fetch it again"
                )
            publish_file(temporary, self.path(ref.digest))
        finally:
            temporary.unlink(missing_ok=True)
            partial.unlink(missing_ok=True)

    def used_bytes(self) -> int:
        """Bytes of every file below the root."""
        return sum(size for _, size, _ in self._files())

    def features_room(self) -> int:
        """Bytes that features may take in all: half of what they and nothing else could fill, so that blobs to come
        find room without evicting them."""
        files = list(self._files())
        kept = sum(size for path, size, _ in files if path.parent == self.features)
        room = kept + shutil.disk_usage(self.root).free - DISK_RESERVE_BYTES
        if self.quota_bytes:
            room = min(room, self.quota_bytes - sum(size for _, size, _ in files) + kept)
        return max(0, room // 2)

    def reserve(self, size: int) -> None:
        """Make room for ``size`` bytes by evicting what was used least recently.

        Raises:
            StoreFull: not enough is evictable; nothing has been evicted then.
        """
        files = list(self._files())
        used = sum(size for _, size, _ in files)
        free = shutil.disk_usage(self.root).free - DISK_RESERVE_BYTES
        missing = size - free
        if self.quota_bytes:
            missing = max(missing, used + size - self.quota_bytes)
        victims = []
        evictable = sorted((f for f in files if self._is_evictable(f[0])), key=lambda file: file[2])
        for path, file_size, _ in evictable:
            if missing <= 0:
                break
            victims.append(path)
            missing -= file_size
        if missing > 0:
            limit = f"quota of {self.quota_bytes} bytes" if self.quota_bytes else f"{max(0, free)} free bytes"
            raise StoreFull(
                f"store {self.root}: {size} bytes do not fit the {limit} with {used} in use, {missing} too many; "
                "raise --quota-mb or free disk space"
            )
        for path in victims:
            path.unlink(missing_ok=True)

    def _is_evictable(self, path: Path) -> bool:
        return path.parent.name in ("blobs", "partial", "features") and path.name.partition(".")[0] not in self._pins

    def _files(self) -> list[tuple[Path, int, int]]:
        found = []
        for folder, _, names in os.walk(self.root):
            for name in names:
                path = Path(folder) / name
                try:
                    status = path.stat()
                except FileNotFoundError:  # the trainer removes features that it needs no more
                    continue
                found.append((path, status.st_size, status.st_mtime_ns))
        return found


def _hold(path: Path, wait_s: float) -> BinaryIO:
    file = path.open("ab")
    give_up_at = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return file
        except BlockingIOError:
            if time.monotonic() >= give_up_at:
                file.close()
                raise ConfigError([f"--store: {path.parent} is used by another agent; give each its own"]) from None
        time.sleep(0.1)


def file_digest(path: Path) -> str:
    """SHA-256 of a file's bytes, lower-case hex."""
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def check_encoded(path: Path, ref: BlobRef) -> None:
    """Check that the encoded file at ``path`` is that of ``ref``, without keeping what it unpacks to.

    Raises:
        ArtifactCorrupt: it is not.
    """
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for chunk in _decoded(file, ref):
            digest.update(chunk)
    if digest.hexdigest() != ref.digest:
        raise ArtifactCorrupt(f"update {ref.digest[:12]} on disk has digest {digest.hexdigest()[:12]}; train again")


def _decoded(file: BinaryIO, ref: BlobRef) -> Iterator[bytes]:
    if ref.encoding == "raw":
        yield from iter(lambda: file.read(CHUNK_BYTES), b"")
        return
    import zstandard  # only for orders that compress

    try:
        yield from zstandard.ZstdDecompressor().read_to_iter(file, write_size=CHUNK_BYTES)
    except zstandard.ZstdError as error:
        raise ArtifactCorrupt(f"update {ref.digest[:12]} is not zstd any more ({error}); train again") from error


def _decode_zstd(source: Path, target: Path, ref: BlobRef) -> None:
    import zstandard  # only for orders that compress: 2 MB of resident memory

    written = 0
    try:
        with source.open("rb") as packed, target.open("wb") as plain:
            for chunk in zstandard.ZstdDecompressor().read_to_iter(packed, write_size=CHUNK_BYTES):
                written += len(chunk)
                if written > ref.size:
                    raise ArtifactCorrupt(f"blob {ref.digest[:12]} unpacks to more than {ref.size} bytes; fetch again")
                plain.write(chunk)
    except zstandard.ZstdError as error:
        raise ArtifactCorrupt(f"blob {ref.digest[:12]} is not zstd ({error}); fetch it again") from error
