"""How features are kept in fewer bytes than steps read them in, and what of them is lost.

``float16``: the nearest such number; relative to each value at most 2**-11, and values up to 65,504.
``int8``: of each example its smallest value and a step of 1/255 of its range, both float32, then one byte for every
value, whose error is at most half a step. Values of a rectifier begin at 0, so nothing is spent on numbers below.

A device rounds what it computes before it trains on it, so that a step is the same whether its features were kept.
"""

from __future__ import annotations

import numpy as np

from edge.contracts.errors import DeviceRefused
from edge.contracts.manifest import ArtifactManifest
from edge.training.feature_cache.artifact import FLOAT16, SCALE_BYTES, rounded_bytes

_STEPS = 255


class Rounding:
    """Between features [B, ...] of ``elements`` values each and what is kept of them, uint8 [B, ``size``].

    Args:
        kind: ``float16`` or ``int8``.
        elements: of one example.

    Raises:
        DeviceRefused: a type that this agent does not know.
    """

    def __init__(self, kind: str, elements: int) -> None:
        self._kind, self._elements = kind, elements
        self.size = rounded_bytes(kind, elements)

    def kept(self, features: np.ndarray) -> np.ndarray:
        """What is kept of ``features`` float32 [B, ...].

        Raises:
            DeviceRefused: values that the type cannot hold.
        """
        flat = features.reshape(len(features), -1)
        if self._kind == FLOAT16:
            with np.errstate(over="ignore"):
                half = flat.astype(np.float16)
            if not np.isfinite(half).all():
                raise DeviceRefused(
                    f"features of {len(flat)} examples are not finite in float16, whose largest number is 65504; the "
                    "run's [training] cached-features has to be float32"
                )
            return half.view(np.uint8)
        low = flat.min(1, keepdims=True)
        step = (flat.max(1, keepdims=True) - low) / np.float32(_STEPS)
        found = np.empty((len(flat), self.size), np.uint8)
        found[:, :SCALE_BYTES] = np.concatenate([low, step], 1).view(np.uint8)
        with np.errstate(invalid="ignore", divide="ignore"):
            places = np.where(step > 0, (flat - low) / step, np.float32(0))
        np.rint(places, out=places)
        found[:, SCALE_BYTES:] = np.clip(places, 0, _STEPS, out=places)
        return found

    def given_back(self, kept: np.ndarray, features: np.ndarray) -> None:
        """Write what ``kept`` uint8 [B, size] stands for into ``features`` float32 [B, ...]."""
        flat = features.reshape(len(features), -1)
        if self._kind == FLOAT16:
            flat[...] = kept.view(np.float16)
            return
        scale = np.ascontiguousarray(kept[:, :SCALE_BYTES]).view(np.float32)
        np.multiply(kept[:, SCALE_BYTES:], scale[:, 1:], out=flat)
        flat += scale[:, :1]


def rounding_of(manifest: ArtifactManifest, elements: int) -> Rounding | None:
    """How the features of an artifact, ``elements`` of each example, are rounded; None: they are not.

    Raises:
        DeviceRefused: a type that this agent does not know.
    """
    kind = manifest.features_kept_as
    return Rounding(kind, elements) if isinstance(kind, str) else None
