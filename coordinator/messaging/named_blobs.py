"""Which blobs a device may ask for: those that its newest orders name, and the files of their artifacts.

An update of another device, or the weights of a cut that it was never given, is not a device's to read.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

from coordinator.ledger.ledger import Ledger
from coordinator.ledger.records import Assignment
from edge.contracts.errors import ApportionError
from edge.contracts.manifest import ArtifactManifest
from edge.contracts.plan import read_order

ORDERS = 4
"""Of a device, the newest ones: a slow device may still fetch for one that was given up meanwhile."""


class NamedBlobs:
    """Looks a device's orders up when it asks for something that they did not name before; for any thread.

    Args:
        manifest: of an assignment's artifact.
    """

    def __init__(self, ledger: Ledger, manifest: Callable[[Assignment], ArtifactManifest]) -> None:
        self._ledger = ledger
        self._manifest = manifest
        self._own: dict[str, tuple[frozenset[str], frozenset[str]]] = {}
        self._files: dict[str, frozenset[str]] = {}
        self._lock = threading.Lock()

    def __contains__(self, asked: tuple[str, str]) -> bool:
        """Whether (device, digest): the device may have the blob."""
        device, digest = asked
        with self._lock:
            if not self._is_known(device, digest):
                self._look_up(device)
            return self._is_known(device, digest)

    def _is_known(self, device: str, digest: str) -> bool:
        own, artifacts = self._own.get(device, (frozenset[str](), frozenset[str]()))
        return digest in own or any(digest in self._files.get(artifact, ()) for artifact in artifacts)

    def _look_up(self, device: str) -> None:
        entries = self._ledger.assignments.newest_of(device, ORDERS)
        if not entries:
            return  # a name that never had an order leaves nothing here
        own = set()
        for entry in entries:
            order = read_order(entry.order)
            own |= {ref.digest for ref in order.blobs}
            if entry.artifact_digest not in self._files:
                # A manifest that is damaged is given all the same: the device says so, and it is made anew.
                with contextlib.suppress(ApportionError):
                    found = frozenset(file.sha256 for file in self._manifest(entry).files)
                    self._files[entry.artifact_digest] = found
        self._own[device] = frozenset(own), frozenset(entry.artifact_digest for entry in entries)
