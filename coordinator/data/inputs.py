"""Raw examples as a program's inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

    from edge.contracts.manifest import InputSpec


def prepare_inputs(x: np.ndarray, spec: InputSpec) -> np.ndarray:
    """Raw examples [N, ...] as program inputs: ``(x * scale - mean) / std`` per channel, no augmentation."""
    import numpy as np

    if spec.dtype == "int64":
        return x.astype(np.int64)
    shape = (1, -1, *([1] * (len(spec.shape) - 1))) if len(spec.mean) > 1 or len(spec.std) > 1 else (1,)
    mean = np.asarray(spec.mean, np.float32).reshape(shape)
    std = np.asarray(spec.std, np.float32).reshape(shape)
    scaled = x.reshape(len(x), *spec.shape).astype(np.float32) * np.float32(spec.scale)
    return np.asarray((scaled - mean) / std)
