"""Which blobs a device may ask for: those that an order of its own names, and the files of that order's artifact.

An update of another device, or the weights of a cut that it was never given, is not a device's to read.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from coordinator.ledger.ledger import Ledger
from coordinator.ledger.records import Assignment
from edge.contracts.errors import ApportionError
from edge.contracts.manifest import ArtifactManifest
from edge.contracts.plan import read_order


class NamedBlobs:
    """Looks a device's order up when it asks for something that its last one did not name; for any thread.

    Args:
        manifest: of an assignment's artifact.
    """

    def __init__(self, ledger: Ledger, manifest: Callable[[Assignment], ArtifactManifest]) -> None:
        self._ledger = ledger
        self._manifest = manifest
        self._own: dict[str, tuple[frozenset[str], str]] = {}
        self._files: dict[str, frozenset[str]] = {}
        self._lock = threading.Lock()

    def __contains__(self, asked: tuple[str, str]) -> bool:
        """Whether (device, digest): the device may have the blob."""
        device, digest = asked
        with self._lock:
            return self._is_known(device, digest) or (self._look_up(device) and self._is_known(device, digest))

    def _is_known(self, device: str, digest: str) -> bool:
        own, artifact = self._own.get(device, (frozenset[str](), ""))
        return digest in own or digest in self._files.get(artifact, ())

    def _look_up(self, device: str) -> bool:
        entry = self._ledger.assignments.open_of(device)
        if entry is None:
            return False
        order = read_order(entry.order)
        refs = (order.artifact, order.weights, order.constants)
        self._own[device] = frozenset(ref.digest for ref in refs if ref is not None), entry.artifact_digest
        if entry.artifact_digest not in self._files:
            try:
                found = frozenset(file.sha256 for file in self._manifest(entry).files)
            except ApportionError:
                return True  # the manifest is damaged: the device is given that, says so, and it is made anew
            self._files[entry.artifact_digest] = found
        return True
