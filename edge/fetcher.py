"""Brings the blobs of an order into the store, one after the other, by device-paced blocks with resume."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import BinaryIO

from edge.artifact_store import ArtifactStore
from edge.contracts.errors import ArtifactCorrupt, StoreFull
from edge.contracts.messages import Block, Get
from edge.contracts.plan import BlobRef
from edge.transport.blocks import Download

log = logging.getLogger("apportion.fetch")


class Fetcher:
    """The downloads of one assignment.

    Args:
        ask: sends one ``get``.

    Attributes:
        bytes_down: encoded bytes received for this assignment.
    """

    def __init__(self, store: ArtifactStore, ask: Callable[[Get], None]) -> None:
        self._store = store
        self._ask = ask
        self._wanted: list[BlobRef] = []
        self._download: Download | None = None
        self._file: BinaryIO | None = None
        self._corrupt: set[str] = set()
        self.bytes_down = 0

    @property
    def is_done(self) -> bool:
        """Every wanted blob is in the store and verified."""
        return not self._wanted

    def want(self, ref: BlobRef, now: float) -> None:
        """Have ``ref`` in the store: nothing to do when it is there and its digest is right.

        Raises:
            StoreFull: no room for it.
            ArtifactCorrupt: never for what is on disk: that is dropped and fetched.
        """
        self._store.pin(ref.digest)
        if self._store.has(ref.digest):
            try:
                self._store.verify(ref.digest)
                return
            except ArtifactCorrupt as error:
                log.warning("%s", error)
        self._wanted.append(ref)
        if self._download is None:
            self._next(now)

    def tick(self, now: float) -> None:
        """Ask for what may be asked for now."""
        if self._download is not None:
            for get in self._download.requests(now):
                self._ask(get)

    def received(self, block: Block, now: float) -> None:
        """Take a block in; blocks of other blobs are ignored.

        Raises:
            MessageRejected: a block that cannot belong to the blob.
            ArtifactCorrupt: the blob arrived with a wrong digest for the second time.
            StoreFull: no room.
        """
        if self._download is None or block.digest != self._download.ref.digest:
            return
        assert self._file is not None
        data = self._download.receive(block, now)
        self.bytes_down += len(data)
        try:
            self._file.write(data)
        except OSError as error:
            raise StoreFull(f"store {self._store.root}: {error}; free disk space") from error
        if self._download.is_complete:
            self._complete(now)
        self.tick(now)

    def reconnected(self, now: float) -> None:
        """Ask again for what was on its way when the connection broke."""
        if self._download is not None:
            self._download.reconnected(now)
            self.tick(now)

    def is_fetching(self, digest: str) -> bool:
        """Whether ``digest`` is wanted and not here yet."""
        return any(ref.digest == digest for ref in self._wanted)

    def close(self) -> None:
        """Stop; what has arrived stays for a later resume."""
        self._wanted.clear()
        self._close_file()

    def _complete(self, now: float) -> None:
        ref = self._wanted[0]
        self._close_file()
        try:
            self._store.complete(ref)
        except ArtifactCorrupt as error:
            if ref.digest in self._corrupt:
                raise
            log.warning("%s", error)
            self._corrupt.add(ref.digest)
        else:
            self._wanted.pop(0)
        self._next(now)

    def _next(self, now: float) -> None:
        while self._wanted and self._download is None:
            ref = self._wanted[0]
            partial = self._store.partial(ref)
            offset = partial.stat().st_size
            self._store.reserve(max(0, (ref.encoded_size or ref.size) - offset))
            self._download = Download(ref, offset, now)
            self._file = partial.open("ab", buffering=0)
            if self._download.is_complete:
                self._complete(now)
        self.tick(now)

    def _close_file(self) -> None:
        self._download = None
        if self._file is not None:
            self._file.close()
            self._file = None
