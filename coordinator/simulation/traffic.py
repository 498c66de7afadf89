"""Bytes that a submodel and its update are on the wire: tensor files, raw. Artifacts and messages are not counted."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

_Layout = tuple[tuple[str, tuple[int, ...], str], ...]


@dataclass(frozen=True)
class Traffic:
    """Bytes to a device and back in one round."""

    down: int
    up: int

    @classmethod
    def of(cls, weights: Mapping[str, np.ndarray], update: Mapping[str, np.ndarray]) -> Traffic:
        """The size of the two files."""
        return cls(_file_bytes(_layout(weights)), _file_bytes(_layout(update)))


def _layout(tensors: Mapping[str, np.ndarray]) -> _Layout:
    return tuple((name, value.shape, value.dtype.name) for name, value in tensors.items())


@functools.lru_cache(maxsize=256)
def _file_bytes(layout: _Layout) -> int:
    """Size of a tensor file of this layout; it does not depend on the values."""
    import numpy as np

    from edge.contracts.tensor_file import encode_tensors

    return len(encode_tensors({name: np.zeros(shape, dtype) for name, shape, dtype in layout}))
