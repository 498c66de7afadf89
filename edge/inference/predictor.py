"""Predictions by a deployed model, on a device: raw examples in, classes out. Needs NumPy and a runtime, no torch."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from edge.contracts.errors import ArtifactCorrupt, ConfigError, DeviceRefused
from edge.contracts.inference import MANIFEST_NAME, InferenceManifest
from edge.contracts.tensor_file import read_tensor_file
from edge.runtimes import RUNTIMES, traits_of
from edge.training.batches import fit_input
from edge.training.local_data import LocalData
from edge.training.normalisation import normalised

if TYPE_CHECKING:
    import numpy as np

_AT_ONCE = 256


class InferenceSession(Protocol):
    """A loaded model; each runtime that can has one in its ``inference`` module, given by ``load(path, threads)``."""

    def logits(self, inputs: np.ndarray) -> np.ndarray:
        """float32 [B, classes, ...] of a batch of program inputs [B, ...]; raises DeviceRefused when it fails."""


class Predictor:
    """The model in a folder that ``apportion deploy`` wrote.

    Args:
        threads: of the runtime.
        own: safetensors of what this device has trained for itself; its tensors take the place of the model's.

    Attributes:
        manifest: what it is, and what was measured of it.
        classes: names, in the order of the scores.

    Raises:
        ConfigError: there is no model, its runtime is not installed, or it is whole with the device's own layers only.
        ArtifactCorrupt: its file is not the one that was deployed.
        DeviceRefused: the runtime cannot load it.
    """

    def __init__(self, folder: str | Path, *, threads: int = 1, own: Path | None = None) -> None:
        self.manifest, path = read_inference_folder(Path(folder))
        self.classes = self.manifest.classes
        self._session = _session(self.manifest, path, threads, _own(self.manifest, Path(folder), own))

    def logits(self, x: Any) -> np.ndarray:
        """What the model gives, float32 [N, classes, ...], or of a task [N, ...]; for raw examples [N, ...], as a
        device's data holds them.

        Raises:
            DataError: examples of another shape, or not numbers.
        """
        import numpy as np

        inputs = self.inputs(np.asarray(x))
        parts = [self._session.logits(inputs[i : i + _AT_ONCE]) for i in range(0, len(inputs), _AT_ONCE)]
        found = np.concatenate(parts) if parts else np.empty((0, len(self.classes)), np.float32)
        return np.asarray(found.reshape(len(inputs), *self.manifest.output) if self.manifest.output else found)

    def probabilities(self, x: Any) -> np.ndarray:
        """Probability of each class, float64 [N, classes, ...], as :meth:`logits`.

        Raises:
            ConfigError: the model was trained for a task that has no classes to choose one of.
        """
        import numpy as np

        if self.manifest.task:
            raise ConfigError(
                [f"the model is for the task '{self.manifest.task}', which predicts no classes; use predict(x)"]
            )

        scores = self.logits(x).astype(np.float64)
        powers = np.exp(scores - scores.max(1, keepdims=True))
        return np.asarray(powers / powers.sum(1, keepdims=True))

    def predict(self, x: Any) -> np.ndarray:
        """The most probable class of each example, names [N, ...], as :meth:`logits`; of a task what it predicts."""
        import numpy as np

        if self.manifest.task:
            return self.logits(x)
        names: np.ndarray = np.asarray(self.classes)[self.logits(x).argmax(1)]
        return names

    def inputs(self, x: np.ndarray) -> np.ndarray:
        """Raw examples as the model's input: shape, dtype, normalisation; no augmentation."""
        import numpy as np

        spec = self.manifest.input
        # No example has a label here; the data's own check wants as many as examples.
        fitted = fit_input(LocalData("examples", x, np.zeros(len(x))), spec)
        return normalised(fitted.astype(spec.dtype), spec)


def read_inference_folder(folder: Path) -> tuple[InferenceManifest, Path]:
    """The manifest in ``folder`` and the path of its model, digest checked; raises as :class:`Predictor`."""
    try:
        manifest = InferenceManifest.from_bytes((folder / MANIFEST_NAME).read_bytes())
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ConfigError(
            [f"{folder}: no model there, it has no {MANIFEST_NAME}"], hint="give a folder that apportion deploy wrote"
        ) from error
    path = folder / manifest.file.name
    try:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise ArtifactCorrupt(f"model {folder}: {error}; copy the folder again") from error
    if digest != manifest.file.sha256:
        raise ArtifactCorrupt(
            f"model {folder}: {path.name} has digest {digest[:12]}, its manifest says {manifest.file.sha256[:12]}; "
            "copy the folder again"
        )
    return manifest, path


def _own(manifest: InferenceManifest, folder: Path, path: Path | None) -> Mapping[str, np.ndarray]:
    own = {} if path is None else dict(read_tensor_file(path, where="the device's own layers"))
    if missing := sorted({*(manifest.personal or ())} - own.keys()):
        raise ConfigError(
            [f"{folder}: '{missing[0]}' and {len(missing) - 1} more are layers that each device has of its own"],
            hint="predict on a device that took part: apportion predict --store STORE --data DATA",
        )
    return own


def _session(manifest: InferenceManifest, path: Path, threads: int, own: Mapping[str, np.ndarray]) -> InferenceSession:
    if manifest.runtime not in RUNTIMES or not traits_of(manifest.runtime).inference:
        known = ", ".join(name for name in RUNTIMES if traits_of(name).inference)
        raise DeviceRefused(f"the model is for the runtime '{manifest.runtime}'; this release predicts with {known}")
    try:
        module = import_module(f"{RUNTIMES[manifest.runtime]}.inference")
    except ImportError as error:
        raise ConfigError(
            [f"the model's runtime '{manifest.runtime}' is not installed ({error})"],
            hint=traits_of(manifest.runtime).install,
        ) from error
    more = {"own": own} if own else {}
    session: InferenceSession = module.load(path, manifest.minimum_runtime_version, threads=threads, **more)
    return session
