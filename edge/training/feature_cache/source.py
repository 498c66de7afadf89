"""The features of a batch: read where they are kept, computed where they are not, and then kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from edge.contracts.errors import DeviceRefused
from edge.contracts.manifest import ArtifactManifest
from edge.contracts.tensors import FEATURES, concrete_shape
from edge.runtimes.base import ComputesFeatures
from edge.training.feature_cache.artifact import features_spec
from edge.training.feature_cache.record_file import RecordFile
from edge.training.feature_cache.rounding import rounding_of
from edge.training.task_tensors import INPUT

if TYPE_CHECKING:
    from edge.runtimes.base import Session


class FeatureSource:
    """Features for the steps of one order.

    Args:
        records: what is kept of them; None: nothing is.

    Raises:
        DeviceRefused: a runtime that cannot give them.
    """

    def __init__(self, session: Session, manifest: ArtifactManifest, records: RecordFile | None) -> None:
        spec = features_spec(manifest)
        if spec is None or not isinstance(session, ComputesFeatures):
            raise DeviceRefused(
                f"runtime '{manifest.runtime}' of this agent gives no features, which the artifact's steps read; "
                "update it"
            )
        self._session, self._records = session, records
        self._spec = spec
        self._rounding = rounding_of(manifest, spec.element_count())
        self._most = max(1, manifest.batch // manifest.micro_batches)
        """Examples at a time: what the artifact's memory is predicted for."""

    def batch(self, places: np.ndarray, x: np.ndarray) -> np.ndarray:
        """Features [B, ...] of the examples ``x`` [B, ...], which are at ``places`` [B] of the device's data.

        Raises:
            DeviceRefused: values that their type cannot hold, or the runtime failed.
        """
        found = np.empty(concrete_shape(self._spec, len(x)), self._spec.dtype)
        rounding = self._rounding
        kept = found if rounding is None else np.empty((len(x), rounding.size), np.uint8)
        missing = [row for row, place in enumerate(places) if not self._read(int(place), x[row], kept[row])]
        for start in range(0, len(missing), self._most):
            rows = missing[start : start + self._most]
            features = self._computed(x[rows])
            kept[rows] = features if rounding is None else rounding.kept(features)
        if self._records is not None:
            for row in missing:
                self._records.write(int(places[row]), x[row].tobytes(), kept[row])
        if rounding is not None:
            rounding.given_back(kept, found)
        return found

    def _read(self, place: int, example: np.ndarray, target: np.ndarray) -> bool:
        return self._records is not None and self._records.read(place, example.tobytes(), target)

    def _computed(self, x: np.ndarray) -> np.ndarray:
        features = self._session.compute(FEATURES, {INPUT: np.ascontiguousarray(x)})[FEATURES]
        if not np.isfinite(features).all():
            raise DeviceRefused(
                f"features of {len(x)} examples are not finite in {self._spec.dtype}, whose largest number is "
                f"{float(np.finfo(self._spec.dtype).max):g}; the run's [training] cached-features has to be float32"
            )
        return features


def frozen_bytes(session: Session, name: str) -> tuple[memoryview]:
    """What ``session`` holds as tensor ``name``, for :func:`edge.training.feature_cache.artifact.features_key`."""
    return (np.ascontiguousarray(session.read(name)).reshape(-1).view(np.uint8).data,)
