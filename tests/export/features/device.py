"""A device's session with a small network whose lowest layers are frozen."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from torch import nn

from edge.contracts.manifest import ArtifactManifest
from edge.contracts.plan import Schedule
from edge.runtimes import runtime as load_runtime
from edge.runtimes.base import Session
from edge.training.artifact_folder import read_artifact_folder
from edge.training.batches import Examples
from edge.training.feature_cache.artifact import features_key, kept_bytes
from edge.training.feature_cache.folder import open_records
from edge.training.feature_cache.source import frozen_bytes
from edge.training.local_data import LocalData
from edge.training.steps import train
from export.bundle import export_artifact
from export.gate_values import gate_values
from export.training_step import StepSpec
from tests.edge.tiny_artifact import tiny_job
from tests.export.features.networks import CLASSES, IMAGE, Residual, frozen_step

EXAMPLES, BATCH = 13, 6


@dataclass
class Device:
    """An artifact in a session with an order of two epochs; counts the examples it computes features of."""

    manifest: ArtifactManifest
    session: Session
    weights: dict[str, np.ndarray]
    examples: Examples
    computed: int = 0

    def trained(self, folder: Path | None = None, *, limit: int = 10**7) -> tuple[float, dict[str, bytes]]:
        """The mean loss and what the order leaves in the parameters and statistics."""
        self.session.load_state(self.weights)
        order = msgspec.structs.replace(
            tiny_job().order,
            schedule=Schedule(epochs=2),
            batch=BATCH,
            hyper={"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01},
        )
        kept = None
        if folder is not None:
            key = features_key(self.manifest, order, partial(frozen_bytes, self.session), "here")
            size = kept_bytes(self.manifest)
            kept = open_records(folder, key, size, examples=self.examples.in_data, limit_bytes=limit)
        compute, self.computed = getattr(self.session, "compute", None), 0

        def counted(program: str, feeds: Any) -> Any:
            self.computed += len(feeds["input"])
            return compute(program, feeds)  # type: ignore[misc]

        self.session.compute = counted  # type: ignore[attr-defined]
        outcome = train(self.session, self.manifest, order, self.examples, kept_features=kept)
        self.session.compute = compute  # type: ignore[attr-defined]
        names = [spec.name for spec in self.manifest.specs("parameter", "buffer")]
        return outcome.loss, {name: self.session.read(name).tobytes() for name in names}


def device(folders: Path, features: str = "float32", runtime: str = "onnxruntime", **choice: Any) -> Device:
    """With an artifact in ``folders``, written where it is not there."""
    folder = folders / f"{runtime} {features} {sorted(choice)}"
    module = Residual(choice.pop("of", nn.BatchNorm2d))
    step: StepSpec = frozen_step(module, "stem", "blocks.0", features=features, **choice)
    if not folder.exists():
        export_artifact(module, step, folder, runtime=runtime)
    manifest, files = read_artifact_folder(folder)
    values = gate_values(step, manifest.tensors, masked=False)
    weights = {s.name: values[s.name] for s in manifest.specs("parameter", "frozen", "buffer")}
    generator = np.random.default_rng(3)
    x = generator.standard_normal((EXAMPLES, *IMAGE.shape)).astype(np.float32)
    data = LocalData("here", x, generator.integers(0, CLASSES, EXAMPLES))
    return Device(manifest, load_runtime(runtime).load(manifest, files, threads=1), weights, Examples(data, manifest))
