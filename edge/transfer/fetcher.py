"""Brings what an order needs into the store by device-paced blocks with resume: manifest, files, weights."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import BinaryIO

from edge.contracts.errors import ArtifactCorrupt, DeviceRefused, StoreFull
from edge.contracts.manifest import ArtifactManifest
from edge.contracts.messages import Block, Get
from edge.contracts.plan import BlobRef, WorkOrder
from edge.identity.trust import Trust
from edge.transfer.artifact_store import ArtifactStore
from edge.transfer.link_rate import LinkRate
from edge.transport.blocks import Download

log = logging.getLogger("apportion.fetch")


class OrderFetch:
    """Everything one order needs: first the manifest, then the files it lists, then the weights.

    Args:
        runtime: the only runtime this device trains with.
        ask: sends one ``get``.
        trust: checks the manifest's signature before anything in it is read.
        allow: raises for a manifest whose files are not to be asked for.
    """

    def __init__(
        self,
        order: WorkOrder,
        store: ArtifactStore,
        *,
        runtime: str,
        ask: Callable[[Get], None],
        trust: Trust | None = None,
        allow: Callable[[ArtifactManifest], None] | None = None,
    ) -> None:
        self._order = order
        self._store = store
        self._runtime = runtime
        self._trust = trust
        self._allow = allow
        self._fetcher = Fetcher(store, ask)
        self._manifest: ArtifactManifest | None = None
        store.unpin_all()

    @property
    def bytes_down(self) -> int:
        """Encoded bytes received for this order."""
        return self._fetcher.bytes_down

    def complete_manifest(self) -> ArtifactManifest | None:
        """The manifest once it and all other blobs are in the store, verified; before that None."""
        return self._manifest if self._fetcher.is_done else None

    def start(self, now: float) -> None:
        """Begin, or find that all is there already.

        Raises:
            StoreFull: no room.
            MessageRejected: a manifest that cannot be used; also UnsupportedVersion.
            SignatureRejected: a manifest that no trusted key has signed.
            DeviceRefused: a manifest for another runtime; also what ``allow`` raises.
            ArtifactCorrupt: a blob arrived with a wrong digest twice.
        """
        self._fetcher.want(self._order.artifact, now)
        self._go_on(now)

    def received(self, block: Block, now: float) -> None:
        """Take a block in.

        Raises:
            BlockRejected: a block that cannot belong to the blob; nothing changed.
            StoreFull: and the others of :meth:`start`.
        """
        self._fetcher.received(block, now)
        self._go_on(now)

    def tick(self, now: float) -> None:
        """Ask for what may be asked for now."""
        self._fetcher.tick(now)

    def reconnected(self, now: float) -> None:
        """Ask again for what was on its way when the connection broke."""
        self._fetcher.reconnected(now)

    def is_fetching(self, digest: str) -> bool:
        """Whether ``digest`` is wanted and not here yet."""
        return self._fetcher.is_fetching(digest)

    def close(self) -> None:
        """Stop; what has arrived stays for a later resume."""
        self._fetcher.close()

    def _go_on(self, now: float) -> None:
        if self._manifest is not None or not self._fetcher.is_done:
            return
        data = self._store.path(self._order.artifact.digest).read_bytes()
        if self._trust is not None:
            self._trust.check_manifest(data, self._order.artifact_signature)
        manifest = ArtifactManifest.from_bytes(data)
        if manifest.runtime != self._runtime:
            raise DeviceRefused(
                f"artifact is for runtime '{manifest.runtime}', this device trains with '{self._runtime}'; "
                "order another artifact"
            )
        if self._allow is not None:
            self._allow(manifest)
        self._manifest = manifest
        for file in manifest.files:
            self._fetcher.want(BlobRef(file.sha256, file.size, "raw", file.size), now)
        self._fetcher.want(self._order.weights, now)
        for ref in self._order.standing_blobs:
            self._fetcher.want(ref, now)


class Fetcher:
    """Downloads, one after the other.

    Args:
        ask: sends one ``get``.

    Attributes:
        bytes_down: encoded bytes received so far.
    """

    def __init__(self, store: ArtifactStore, ask: Callable[[Get], None]) -> None:
        self._store = store
        self._ask = ask
        self._wanted: list[BlobRef] = []
        self._download: Download | None = None
        self._file: BinaryIO | None = None
        self._corrupt: set[str] = set()
        self._rate = LinkRate(store.root)
        self._began: tuple[float, int] | None = None
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
            BlockRejected: a block that cannot belong to the blob; nothing changed.
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
            raise self._full(error) from error
        if self._download.is_complete:
            self._complete(now)
        self.tick(now)

    def reconnected(self, now: float) -> None:
        """Ask again for what was on its way when the connection broke."""
        self._began = None  # the time without a connection says nothing of the link
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
        if self._began is not None:
            began_at, held = self._began
            self._rate.add((ref.encoded_size or ref.size) - held, now - began_at)
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
            try:
                self._file = partial.open("ab", buffering=0)
            except OSError as error:
                raise self._full(error) from error
            self._download, self._began = Download(ref, offset, now), (now, offset)
            if self._download.is_complete:
                self._complete(now)
        self.tick(now)

    def _full(self, error: OSError) -> StoreFull:
        ref = self._wanted[0]
        held = self._store.partial(ref).stat().st_size
        return StoreFull(
            f"store {self._store.root}: blob {ref.digest[:12]}, {held} of {ref.encoded_size or ref.size} bytes are "
            f"there and stay ({error.strerror or error}); free disk space"
        )

    def _close_file(self) -> None:
        self._download = None
        if self._file is not None:
            self._file.close()
            self._file = None
