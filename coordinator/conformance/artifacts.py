"""Tiny artifacts of the kit, exported when first wanted, and what a training with them has to give.

The reference is this project's own session on ONNX Runtime, whatever runtime the agent has: the same steps, the same
batches. The exporter has held both graphs to torch.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from edge.contracts.manifest import ArtifactManifest, InputSpec
from edge.contracts.packing import KEPT, kept_values, pack_mask
from edge.contracts.plan import WorkOrder
from edge.contracts.streams import self_test_value
from edge.runtimes import DEFAULT
from edge.training.artifact_folder import read_artifact_folder

if TYPE_CHECKING:
    from torch import nn

    from export.training_step import StepSpec

REFERENCE_RUNTIME = DEFAULT
IMAGE = InputSpec(layout="chw", shape=(3, 8, 8), scale=1 / 255, mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.25))
CLASSES, BATCH = 5, 8
HYPER = {"lr": 0.05, "momentum": 0.9, "weight_decay": 1e-3}
MASKED_WEIGHT = "1.weight"
NAMES = ("plain", "augmented", "batch-norm", "micro-batches", "masked")


@dataclass(frozen=True)
class KitArtifact:
    """An artifact as the agent gets it, and its twin for the reference.

    Attributes:
        data: the manifest's exact bytes.
        files: graph bytes by name.
    """

    name: str
    manifest: ArtifactManifest
    data: bytes
    files: Mapping[str, bytes]
    reference: ArtifactManifest
    reference_files: Mapping[str, Path]

    @property
    def digest(self) -> str:
        """SHA-256 of the manifest."""
        return hashlib.sha256(self.data).hexdigest()

    def weights(self, seed: int) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """(weights, constants) as they travel: formula values of ``seed``, masked ones as kept entries."""
        specs = self.manifest.specs("parameter", "buffer")
        tensors = {s.name: self_test_value(s, seed, BATCH) for s in specs}
        if self.name != "masked":
            return tensors, {}
        whole = tensors.pop(MASKED_WEIGHT)
        mask = np.random.default_rng(seed).random(whole.shape) < 0.3
        tensors[MASKED_WEIGHT + KEPT] = kept_values(whole, mask)
        return tensors, pack_mask(MASKED_WEIGHT, mask)

    def upload(self) -> tuple[str, ...]:
        """Every tensor that a training moves, as an order names it."""
        names = [spec.name for spec in self.manifest.specs("parameter", "buffer")]
        return tuple(f"{n}{KEPT}" if self.name == "masked" and n == MASKED_WEIGHT else n for n in names)


@dataclass(frozen=True)
class Reference:
    """What the order gives here: the update's tensors and digest, and the means of the report."""

    tensors: dict[str, np.ndarray]
    digest: str
    steps: int
    loss: float
    accuracy: float
    num_examples: int
    labels: tuple[int, ...] | None


class Artifacts:
    """The kit's artifacts for ``runtime``, below ``folder``."""

    def __init__(self, folder: Path, runtime: str) -> None:
        self._folder = folder
        self._runtime = runtime
        self._made: dict[str, KitArtifact] = {}

    def get(self, name: str) -> KitArtifact:
        """The artifact ``name`` of :data:`NAMES`.

        Raises:
            ExportRefused: the runtime has no step for it.
            ConfigError: no such runtime.
        """
        if name not in self._made:
            # The same graphs as the plain ones: only what is done to a batch before it is fed differs.
            base = "plain" if name == "augmented" else name
            manifest, paths = self._exported(base, self._runtime)
            reference, reference_paths = self._exported(base, REFERENCE_RUNTIME)
            if name == "augmented":
                manifest, reference = _augmented(manifest), _augmented(reference)
            files = {file: path.read_bytes() for file, path in paths.items()}
            self._made[name] = KitArtifact(name, manifest, manifest.to_bytes(), files, reference, reference_paths)
        return self._made[name]

    def _exported(self, name: str, runtime: str) -> tuple[ArtifactManifest, dict[str, Path]]:
        folder = self._folder / f"{name}-{runtime}"
        if not folder.exists():
            from export.bundle import export_artifact

            module, step = _module_and_step(name)
            export_artifact(module, step, folder, runtime=runtime)
        return read_artifact_folder(folder)


def reference(
    artifact: KitArtifact, order: WorkOrder, weights: bytes, constants: bytes | None, data: Path
) -> Reference:
    """Carry ``order`` out here."""
    from edge.runtimes import runtime
    from edge.runtimes.weights_file import WeightsFile
    from edge.training.assignment_run import carry_out
    from edge.training.batches import Examples
    from edge.training.local_data import read_local_data
    from edge.training.steps import uploaded
    from edge.training.update_file import write_update

    manifest = artifact.reference
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "weights").write_bytes(weights)
        (folder / "constants").write_bytes(constants or b"")
        session = runtime(REFERENCE_RUNTIME).load(manifest, artifact.reference_files, threads=1)
        examples = Examples(read_local_data(str(data)), manifest)
        given = WeightsFile(
            folder / "weights", where="the kit's", constants=folder / "constants" if constants else None
        )
        session.load_state(given)
        run = carry_out(session, manifest, order, examples)
        tensors = {name: uploaded(session, name).copy() for name in order.upload}
        digest, _, _ = write_update(folder / "update", tensors, "raw")
    return Reference(
        tensors=tensors,
        digest=digest,
        steps=run.outcome.steps,
        loss=run.outcome.loss,
        accuracy=run.outcome.metrics["accuracy"],
        num_examples=run.num_examples,
        labels=run.labels,
    )


def write_data(folder: Path, examples: int = 27) -> None:
    """Two npz files of ``examples`` byte images; the last class has none, so that its logit is masked."""
    folder.mkdir(parents=True, exist_ok=True)
    draws = np.random.default_rng(11)
    x = draws.integers(0, 256, (examples, *IMAGE.shape), np.uint8)
    y = draws.integers(0, CLASSES - 1, examples)
    half = examples // 2
    np.savez(folder / "part-0.npz", x=x[:half], y=y[:half])
    np.savez(folder / "part-1.npz", x=x[half:], y=y[half:])


def _augmented(manifest: ArtifactManifest) -> ArtifactManifest:
    augmented = msgspec.structs.replace(manifest.input, augment=("flip", "crop4"))
    return msgspec.structs.replace(manifest, input=augmented)


def _module_and_step(name: str) -> tuple[nn.Module, StepSpec]:
    import torch
    from torch import nn

    from export.training_step import StepSpec, Variant

    torch.manual_seed(0)
    step = StepSpec(input=IMAGE, classes=CLASSES, batch=BATCH)
    if name == "batch-norm":
        convolution = nn.Conv2d(3, 4, 3, padding=1, bias=False)
        return nn.Sequential(convolution, nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(256, CLASSES)), step
    # 0.8 MB of weights: several blocks of any size that a device may ask for.
    width = 1024 if name == "plain" else 48
    module = nn.Sequential(nn.Flatten(), nn.Linear(192, width), nn.ReLU(), nn.Linear(width, CLASSES))
    if name == "micro-batches":
        return module, msgspec.structs.replace(step, micro_batches=2)
    if name == "masked":
        return module, msgspec.structs.replace(step, masked=(MASKED_WEIGHT,))
    half = Variant(
        "half", ((MASKED_WEIGHT, (width // 2, 192)), ("1.bias", (width // 2,)), ("3.weight", (5, width // 2)))
    )
    return module, msgspec.structs.replace(step, loss="label_masked_cross_entropy", variants=(half,))
