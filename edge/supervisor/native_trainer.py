"""Which trainer carries an order out: the one without Python where it can, with the reason where it cannot."""

from __future__ import annotations

import io
import logging
import subprocess
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, cast

import msgspec

from edge.contracts.errors import MessageRejected
from edge.contracts.manifest import ArtifactManifest
from edge.runtimes import traits_of
from edge.supervisor.trainer_messages import Ready, Train, read_reply

if TYPE_CHECKING:
    from edge.flat_orders.archives import StoredArray
    from edge.runtimes.base import NativeTrainers

log = logging.getLogger("apportion.trainer")

UNABLE = "trainer-unable"
"""Code of a failure of the native trainer that is none of the order's: the Python trainer is to carry it out."""

HELLO_S = 60.0
"""A busy device starts a program within that."""


@dataclass(frozen=True)
class Told:
    """What a device learns of itself without a Python trainer.

    Attributes:
        ready: as the trainer without Python says it, ``rss_bytes`` its own.
        num_examples: in the local data.
        python_idle_bytes: what a Python trainer is taken to weigh with them, until one runs.
        data_bytes: of the arrays, which a Python trainer holds.
    """

    ready: Ready
    num_examples: int
    python_idle_bytes: int
    data_bytes: int


class NativeTrainer:
    """What is known of the trainer without Python here.

    Args:
        runtime: the device's.
        python: interpreter that runs Python trainers; the program is looked for in its environment.

    Attributes:
        path: of its program; empty until it is found or a Python trainer has told of it, or where there is none.
        runtime, version: that it is a trainer of.
        reason: why the last order is not its to carry out; empty where it is.
    """

    def __init__(self, runtime: str = "", python: str = "") -> None:
        self.path = ""
        self.runtime, self.version = runtime, ""
        self.reason = ""
        self._python = python
        self._declined: dict[str, str] = {}

    def told(self, ready: Ready) -> None:
        """A Python trainer has said what there is here."""
        self.path, self.runtime, self.version = ready.native, ready.runtime, ready.version

    def describe(self, data: str) -> Told | None:
        """Runtime and examples at ``data``, told without a Python trainer; None where only that one can."""
        traits = traits_of(self.runtime)
        if not traits.usual_idle_bytes or not self.is_found():
            return None
        arrays = self._arrays(data)
        ready = self.hello() if arrays else None
        if ready is None:
            return None
        ready = msgspec.structs.replace(ready, version=self.version, max_threads=traits.max_threads, native=self.path)
        size = sum(array.size_bytes for array in arrays)
        count = sum(array.shape[0] for array in arrays) // 2
        log.info("%s %s and %d examples, told without a Python trainer", self.runtime, self.version, count)
        return Told(ready, count, traits.usual_idle_bytes + size, size)

    def is_found(self) -> bool:
        """Whether the interpreter's environment has a program, which is then the one to start."""
        name = traits_of(self.runtime).native_trainer
        if not name:
            return False
        installed = cast("NativeTrainers", import_module(name)).installed_trainer(self._python)
        if installed is not None:
            self.path, self.version = installed.program, installed.version
        return installed is not None

    def hello(self) -> Ready | None:
        """What the program says of itself; None, and it is forgotten, where it does not start."""
        try:
            done = subprocess.run([self.path, "hello"], capture_output=True, timeout=HELLO_S, check=True)
            ready = read_reply(io.BytesIO(done.stdout))
            if isinstance(ready, Ready) and ready.rss_bytes > 0:
                return ready
            problem = "it did not say ready"
        except (OSError, ValueError, MessageRejected, subprocess.SubprocessError) as error:
            problem = str(error)
        log.warning("%s does not start (%s); the Python trainer carries orders out", self.path, problem)
        self.path = ""
        return None

    def idle_bytes(self, data: str) -> int:
        """What it weighs before any order; 0 where there is none, or where it cannot read the examples at ``data``."""
        ready = self.hello() if self.path and self._arrays(data) else None
        return 0 if ready is None else ready.rss_bytes

    def _arrays(self, data: str) -> list[StoredArray]:
        """``x`` and ``y`` of every file; empty where it cannot read them."""
        from edge.flat_orders.examples import read_arrays  # only where there is one to read them
        from edge.flat_orders.writing import Unable

        try:
            return read_arrays(data)
        except Unable as unable:
            log.info("the Python trainer carries orders out, because %s", unable)
            return []

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
