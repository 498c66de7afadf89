"""The export cache: one artifact per (step, cut shape, runtime), exported once, kept as blobs, found by its key.

Exporters are given from outside (:mod:`coordinator.cli` wires them); this file knows only keys, manifests and blobs.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from coordinator.blobs.blob_store import BlobStore
from coordinator.ledger.ledger import Ledger
from coordinator.planning.estimate import CountedStep, Estimator
from coordinator.planning.export_cache import ExportCache
from coordinator.planning.heap import give_back
from coordinator.submodels.record import Cut, cut_digest
from coordinator.submodels.values import DeviceProgram
from coordinator.tracking.timing import timed
from edge.contracts.errors import ArtifactCorrupt, ExportRefused, ParityError
from edge.contracts.manifest import ArtifactManifest, Cost
from edge.contracts.plan import BlobRef
from export.forms.step_form import PLAIN, StepForm


class Exporter(Protocol):
    """Turns a cut into a verified artifact for a runtime."""

    def key(self, cut: Cut, program: DeviceProgram, runtime: str, form: StepForm = PLAIN) -> str:
        """SHA-256 of the canonical step specification; equal keys give equal artifacts."""

    def export(
        self, cut: Cut, program: DeviceProgram, runtime: str, out_dir: Path, form: StepForm = PLAIN
    ) -> ArtifactManifest:
        """Write the artifact to ``out_dir``; raises ExportRefused or ParityError."""

    def unable(self, program: DeviceProgram, runtime: str) -> tuple[str, ...]:
        """What ``program`` needs that no artifact for ``runtime`` can carry, in words; empty when it can be tried."""

    def refused_form(self, cut: Cut, program: DeviceProgram, runtime: str, form: StepForm) -> str:
        """Why the step on ``cut`` cannot take ``form`` on ``runtime``; empty when it can be tried. Exports nothing."""


@runtime_checkable
class CountsSteps(Protocol):
    """An exporter that can count a step without exporting it."""

    def counted(self, cut: Cut, program: DeviceProgram, runtime: str) -> CountedStep | None:
        """The counts of the step on ``cut`` as ``runtime`` holds it; None where they cannot be had."""


@runtime_checkable
class WritesSteps(Protocol):
    """An exporter that can write some steps in no time, and then knows their cost without an export's checks."""

    def written_cost(self, cut: Cut, program: DeviceProgram, runtime: str, form: StepForm) -> Cost | None:
        """What the manifest will say of the step in ``form``; None where that takes an export."""


@dataclass(frozen=True)
class Artifact:
    """An artifact in the blob store: what it is, and what devices ask for it by."""

    manifest: ArtifactManifest
    ref: BlobRef

    def has_program(self, name: str) -> bool:
        """Whether there is a program called ``name``."""
        return any(program.name == name for program in self.manifest.programs)


class Artifacts:
    """Artifacts of a run; :meth:`get` exports what the ledger has not seen.

    Args:
        cache: folder of artifacts kept across runs; empty: there is none.
    """

    def __init__(self, exporter: Exporter, ledger: Ledger, blobs: BlobStore, *, cache: str = "") -> None:
        self._exporter = exporter
        self._ledger = ledger
        self._blobs = blobs
        self._cache = ExportCache(Path(cache)) if cache else None
        # Cuts that keep other channels every round share a key, so only strings grow with the rounds.
        self._keys: dict[tuple[str, str, str, str], str] = {}
        self._known: dict[str, Artifact] = {}
        self._refused: dict[tuple[str, str, str, str], ExportRefused | ParityError] = {}
        self.exports = 0
        self.estimator = Estimator(self._counted, self._written_cost)
        """What can be said of steps that were not exported."""

    def get(self, cut: Cut, program: DeviceProgram, runtime: str, form: StepForm = PLAIN) -> Artifact:
        """The artifact for ``cut`` and ``program`` on ``runtime``; what was refused once is refused again at once.

        Raises:
            ExportRefused: a layer has no training step on that runtime, or the step cannot take ``form``.
            ParityError: the exported step disagrees with torch.
        """
        memo = (cut_digest(cut), repr(program), runtime, form.name)
        if memo in self._refused:
            raise self._refused[memo]
        key = self.key(cut, program, runtime, form)
        known = self._known.get(key)
        if known is None or not self._is_whole(known):
            digest = self._ledger.artifacts.find(key)
            if digest is None or digest not in self._blobs or not self._is_whole(self.load(digest)):
                try:
                    digest = self._export(key, cut, program, runtime, form)
                except (ExportRefused, ParityError) as error:
                    self._refused[memo] = error
                    raise
            self._known[key] = self.load(digest)
        self.estimator.learn(cut, program, runtime, form, self._known[key].manifest.cost)
        return self._known[key]

    def key(self, cut: Cut, program: DeviceProgram, runtime: str, form: StepForm = PLAIN) -> str:
        """As :meth:`Exporter.key`, made once."""
        memo = (cut_digest(cut), repr(program), runtime, form.name)
        if memo not in self._keys:
            self._keys[memo] = self._exporter.key(cut, program, runtime, form)
        return self._keys[memo]

    def is_at_hand(self, cut: Cut, program: DeviceProgram, runtime: str, form: StepForm = PLAIN) -> bool:
        """Whether :meth:`get` answers at once: exported before by this run, or refused."""
        memo = (cut_digest(cut), repr(program), runtime, form.name)
        return memo in self._refused or self._ledger.artifacts.find(self.key(cut, program, runtime, form)) is not None

    def _counted(self, cut: Cut, program: DeviceProgram, runtime: str) -> CountedStep | None:
        return self._exporter.counted(cut, program, runtime) if isinstance(self._exporter, CountsSteps) else None

    def _written_cost(self, cut: Cut, program: DeviceProgram, runtime: str, form: StepForm) -> Cost | None:
        exporter = self._exporter
        return exporter.written_cost(cut, program, runtime, form) if isinstance(exporter, WritesSteps) else None

    def unable(self, program: DeviceProgram, runtime: str) -> tuple[str, ...]:
        """As :meth:`Exporter.unable`."""
        return self._exporter.unable(program, runtime)

    def refused_form(self, cut: Cut, program: DeviceProgram, runtime: str, form: StepForm) -> str:
        """As :meth:`Exporter.refused_form`."""
        return self._exporter.refused_form(cut, program, runtime, form)

    def _is_whole(self, artifact: Artifact) -> bool:
        """Whether manifest and files are in the store: one whose bytes rotted on disk was deleted there."""
        return all(
            digest in self._blobs for digest in (artifact.ref.digest, *(f.sha256 for f in artifact.manifest.files))
        )

    def _export(self, key: str, cut: Cut, program: DeviceProgram, runtime: str, form: StepForm) -> str:
        staging = Path(tempfile.mkdtemp(prefix="apportion-export-"))
        try:
            folder = staging / "artifact"

            def export() -> ArtifactManifest:
                return self._exporter.export(cut, program, runtime, folder, form)

            with timed("export", runtime=runtime, form=form.name):
                manifest = self._cache.get(key, folder, export) if self._cache else export()
            for file in manifest.files:
                stored = self._blobs.put_file(folder / file.name)
                if stored != file.sha256:
                    raise ArtifactCorrupt(
                        f"export: {file.name} has digest {stored[:12]}, manifest says {file.sha256[:12]}"
                    )
                self._ledger.blobs.add(stored, file.size)
            data = (folder / "manifest.json").read_bytes()
            digest = self._blobs.put(data)
            self._ledger.blobs.add(digest, len(data))
            self._ledger.artifacts.add(key, digest)
            self.exports += 1
            return digest
        finally:
            shutil.rmtree(staging, ignore_errors=True)
            give_back()

    def load(self, digest: str) -> Artifact:
        """The artifact whose manifest has ``digest``, exported before.

        Raises:
            ArtifactCorrupt: its manifest is damaged, or not in the store any more.
        """
        data = self._blobs.read(digest)
        if (
            hashlib.sha256(data).hexdigest() != digest
        ):  # a few kilobytes, read seldom: this process may have seen it whole
            raise ArtifactCorrupt(
                f"manifest of an artifact: blob {digest[:12]} holds other bytes than were stored",
                hint="apportion fsck RUN_DIR --deep --repair sets it aside, then resume makes it again",
            )
        return Artifact(ArtifactManifest.from_bytes(data), BlobRef(digest, len(data), "raw", len(data)))

    def write_folder(self, artifact: Artifact, folder: Path) -> None:
        """Put the artifact's files and manifest into ``folder``, as ``apportion verify`` reads them."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "manifest.json").write_bytes(self._blobs.path(artifact.ref.digest).read_bytes())
        for file in artifact.manifest.files:
            shutil.copyfile(self._blobs.path(file.sha256), folder / file.name)
