"""What a training runtime is to the trainer: it loads an artifact's programs and runs them over state tensors.

A runtime knows nothing of methods, devices or data. One third-party runtime per folder; the trainer imports only one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    import numpy as np

    from edge.contracts.manifest import ArtifactManifest


class Session(Protocol):
    """An artifact ready to run. It owns the values of all state tensors of its programs."""

    def load_state(self, tensors: Mapping[str, np.ndarray]) -> None:
        """Copy ``tensors`` in; slots and accumulators that are not among them become zero.

        Raises:
            ArtifactCorrupt: another state tensor is missing, or one has another shape or dtype than the manifest's.
        """

    def run(self, program: str, feeds: Mapping[str, np.ndarray]) -> dict[str, float]:
        """One step: the state takes the program's outputs; its scalar loss and metrics are given back.

        Args:
            feeds: every input of the program that is not state, C-contiguous, dtypes of the manifest.

        Raises:
            PlanError: no such program.
            DeviceRefused: the runtime could not execute it (out of memory, wrong shape).
        """

    def forget(self, program: str) -> None:
        """Give back the memory that ``program`` alone needs; it is loaded again when it runs again."""

    def read(self, name: str) -> np.ndarray:
        """The present value of state tensor ``name``; a view that the next :meth:`run` overwrites."""

    def holds_kept(self, name: str) -> bool:
        """Whether of masked tensor ``name`` there are the kept entries alone, :meth:`read` as ``<name>#kept``."""


@runtime_checkable
class ComputesFeatures(Protocol):
    """A session that gives arrays, too: what program ``features`` makes of examples."""

    def compute(self, program: str, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The arrays that ``program``, which moves no state, gives, by the names of their tensors.

        Raises:
            PlanError, DeviceRefused: as :meth:`Session.run`.
        """


class Runtime(Protocol):
    """A module ``session`` in a folder of ``edge/runtimes``."""

    @property
    def NAME(self) -> str:
        """As in the manifest and the registry."""

    def version(self) -> str:
        """Release of the runtime installed here."""

    def load(self, manifest: ArtifactManifest, files: Mapping[str, Path], *, threads: int) -> Session:
        """A session of the artifact.

        Args:
            files: file name in the manifest -> verified file.

        Raises:
            DeviceRefused: this release is too old for the artifact or cannot load a graph.
        """


class NativeBuild(Protocol):
    """A module that compiles a runtime's session library against its wheel; the device side needs no index for it."""

    @property
    def PACKAGE(self) -> str:
        """Folder in the wheel, with ``include`` and ``lib`` in it."""

    @property
    def LOADED(self) -> Set[str]:
        """Files of the wheel that a device loads."""

    def portable_name(self, release: str) -> str:
        """File name of a library for another environment and that ``release`` of the wheel."""

    def compile_library(self, wheel: Path, library: Path, *, compiler: str, flags: Sequence[str], search: str) -> None:
        """Compile ``library`` against the package's folder ``wheel``; it is there whole or not at all.

        Args:
            search: folder in which the library will find those of the wheel; ``$ORIGIN`` is the library's own.

        Raises:
            DeviceRefused: no such compiler, or it failed.
        """


@dataclass(frozen=True)
class InstalledTrainer:
    """A trainer without Python, with the runtime of release ``version``; ``program`` is its path."""

    program: str
    version: str


class NativeTrainers(Protocol):
    """A module that finds a runtime's trainer without Python; it imports nothing of the runtime."""

    def installed_trainer(self, python: str) -> InstalledTrainer | None:
        """That of the environment of the interpreter ``python``; None where there is none, or it is not found so."""
