"""Which trainer carries an order out: the one without Python where it can, with the reason where it cannot."""

from __future__ import annotations

import logging
import subprocess

from edge.contracts.manifest import ArtifactManifest
from edge.supervisor.trainer_messages import Ready, Train

log = logging.getLogger("apportion.trainer")

UNABLE = "trainer-unable"
"""Code of a failure of the native trainer that is none of the order's: the Python trainer is to carry it out."""

IDLE_S = 60.0
"""A busy device starts a program within that."""


class NativeTrainer:
    """What is known of the trainer without Python here.

    Attributes:
        path: of its program; empty until a Python trainer has told of one, or where there is none.
        runtime, version: that it is a trainer of.
        reason: why the last order is not its to carry out; empty where it is.
    """

    def __init__(self) -> None:
        self.path = ""
        self.runtime, self.version = "", ""
        self.reason = ""
        self._declined: dict[str, str] = {}

    def told(self, ready: Ready) -> None:
        """A Python trainer has said what there is here."""
        self.path, self.runtime, self.version = ready.native, ready.runtime, ready.version

    def idle_bytes(self, data: str) -> int:
        """What it weighs before any order; 0 where there is none, or where it cannot read the examples at ``data``."""
        if not self.path:
            return 0
        from edge.flat_orders.examples import archives_of
        from edge.flat_orders.writing import Unable

        try:
            archives_of(data)
            done = subprocess.run([self.path, "idle"], capture_output=True, text=True, timeout=IDLE_S, check=True)
            return int(done.stdout)
        except Unable as unable:
            log.info("the Python trainer carries orders out, because %s", unable)
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            log.warning("%s does not start (%s); the Python trainer carries orders out", self.path, error)
            self.path = ""
        return 0

    def flat(self, request: Train, manifest: ArtifactManifest | None) -> bytes | None:
        """The order of ``request`` for it; None where the Python trainer has to carry the order out."""
        found, reason = None, self._unsuited(request, manifest)
        if not reason:
            from edge.flat_orders.order import flat_order  # only where there is one to take it
            from edge.flat_orders.writing import Unable

            assert manifest is not None
            try:
                found = flat_order(request, manifest)
            except Unable as unable:
                reason = str(unable)
        if reason and self.path and reason != self.reason:
            log.info("the Python trainer carries orders out, because %s", reason)
        self.reason = reason
        return found

    def _unsuited(self, request: Train, manifest: ArtifactManifest | None) -> str:
        """Why the order is not its to look at; empty where it is."""
        if not self.path or manifest is None:
            return "there is no trainer without Python for this runtime here"
        if (manifest.runtime, manifest.minimum_runtime_version) != (self.runtime, self.version):
            made_for = f"{manifest.runtime} {manifest.minimum_runtime_version}"
            return f"the artifact is for {made_for}, not for {self.runtime} {self.version}"
        return self._declined.get(request.order.artifact.digest, "")

    def decline(self, artifact: str, reason: str) -> None:
        """Leave orders of that artifact to the Python trainer from now on."""
        self._declined[artifact] = reason
