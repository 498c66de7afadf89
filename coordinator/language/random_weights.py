"""First values of a language model without files: GPT-2's rule, each piece of a tensor from a stream of its own.

Source: Radford et al. 2019, section 2.3: normal values of deviation 0.02, those of the projections back into the
residual stream divided by the square root of the number of residual layers; biases 0, norms the identity.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from edge.contracts.streams import stream_seed
from export.language.architecture import Architecture
from export.language.causal_model import meta_model

DEVIATION = 0.02
_BACK = (".attention.output.weight", ".feed_forward.down.weight")
_PIECE = 1 << 22
"""Elements drawn at a time."""


def random_values(architecture: Architecture, seed: int) -> Iterator[tuple[str, np.ndarray]]:
    """(Name, float32 array) of every tensor, in the module's order."""
    norm = 0.0 if architecture.norm_offset else 1.0
    for name, value in meta_model(architecture).named_parameters():
        if value.ndim == 2:
            deviation = DEVIATION / (2 * architecture.layers) ** 0.5 if name.endswith(_BACK) else DEVIATION
            yield name, _normal(seed, name, tuple(value.shape), deviation)
        else:
            first = 0.0 if name.endswith(".bias") else norm
            yield name, np.full(tuple(value.shape), first, np.float32)


def _normal(seed: int, name: str, shape: tuple[int, ...], deviation: float) -> np.ndarray:
    rows, columns = shape
    found, step = np.empty(shape, np.float32), max(1, _PIECE // columns)
    for first in range(0, rows, step):
        last = min(rows, first + step)
        # Torch takes seeds of 63 bits on every platform.
        generator = torch.Generator().manual_seed(stream_seed(seed, f"language {name}", first) >> 1)
        found[first:last] = (torch.randn(last - first, columns, generator=generator) * deviation).numpy()
    return found
