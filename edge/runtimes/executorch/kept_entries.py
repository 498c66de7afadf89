"""A tensor held as the entries that its mask keeps: where they lie, and what goes in and comes out.

The places are made from the mask when an order comes; a step reads them and moves the values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from edge.contracts.errors import ArtifactCorrupt, DeviceRefused
from edge.contracts.packing import KEPT, MASK
from edge.contracts.tensors import TensorSpec, concrete_shape
from edge.runtimes.executorch.library import library


class KeptEntries:
    """Places of the kept entries of a parameter and its slots; nothing is kept until a mask has come.

    Attributes:
        starts: [rows + 1] int32; row o has entries starts[o] .. starts[o + 1] - 1.
        columns: [capacity] int32, of each entry, rows flattened to their last dimension; 0 beyond the last entry.
    """

    def __init__(self, mask: TensorSpec) -> None:
        self._spec = mask
        self._shape = concrete_shape(mask)
        self.capacity = mask.capacity
        self.starts = np.zeros(self._shape[0] + 1, np.int32)
        self.columns = np.zeros(mask.capacity, np.int32)

    @property
    def count(self) -> int:
        """Entries that are kept."""
        return int(self.starts[-1])

    def take_mask(self, tensors: Mapping[str, np.ndarray]) -> None:
        """Find the places in the mask among ``tensors``.

        Raises:
            ArtifactCorrupt: there is none, or of another shape.
            DeviceRefused: it keeps more entries than the artifact has room for.
        """
        name = self._spec.name
        mask = tensors.get(name)
        if mask is None or mask.shape != self._shape or mask.dtype != np.bool_:
            found = "none" if mask is None else f"{mask.dtype}{list(mask.shape)}"
            raise ArtifactCorrupt(
                f"the weights hold {found} as mask '{name}', the artifact needs bool{list(self._shape)}; order again"
            )
        flat = np.ascontiguousarray(mask).reshape(self._shape[0], -1)
        count = library().apportion_places(
            flat.ctypes.data, *flat.shape, self.starts.ctypes.data, self.columns.ctypes.data, self.capacity
        )
        if count > self.capacity:
            self.starts.fill(0)
            raise DeviceRefused(
                f"mask '{name}' keeps {count} entries, the artifact has room for {self.capacity}; "
                "export it again for this mask"
            )

    def take_values(self, spec: TensorSpec, target: np.ndarray, tensors: Mapping[str, np.ndarray]) -> None:
        """Fill ``target`` [capacity] with the kept entries of ``spec``; a slot that did not come becomes zero.

        Raises:
            ArtifactCorrupt: it is missing, or does not fit the mask.
        """
        name = spec.name
        if name + KEPT in tensors:
            kept = tensors[name + KEPT]
        elif name in tensors:
            whole = tensors[name]
            if whole.shape != self._shape:
                raise ArtifactCorrupt(
                    f"weights: '{name}' has shape {list(whole.shape)}, the artifact says {list(self._shape)}; "
                    "order again"
                )
            kept = whole[self.mask()]
        elif spec.role == "slot":
            target.fill(0)
            return
        else:
            raise ArtifactCorrupt(f"the weights hold no {spec.role} '{name}' that the artifact needs; order again")
        if kept.shape != (self.count,) or kept.dtype != target.dtype:
            raise ArtifactCorrupt(
                f"weights: {kept.dtype}{list(kept.shape)} values of '{name}' for {self.count} kept entries; order again"
            )
        target[: self.count] = kept
        target[self.count :] = 0

    def mask(self) -> np.ndarray:
        """The mask, written out."""
        mask = np.zeros((self._shape[0], math.prod(self._shape[1:])), bool)
        mask[self._rows(), self.columns[: self.count]] = True
        return mask.reshape(self._shape)

    def whole(self, values: np.ndarray) -> np.ndarray:
        """``values`` [capacity] written out, 0 where the mask keeps nothing."""
        whole = np.zeros((self._shape[0], math.prod(self._shape[1:])), values.dtype)
        whole[self._rows(), self.columns[: self.count]] = values[: self.count]
        return whole.reshape(self._shape)

    def _rows(self) -> np.ndarray:
        return np.repeat(np.arange(self._shape[0]), np.diff(self.starts))


def kept_entries(specs: Mapping[str, TensorSpec]) -> dict[str, KeptEntries]:
    """For every parameter of which an artifact holds kept entries alone, by its name."""
    masks = [spec for spec in specs.values() if spec.role == "grad_mask" and spec.capacity]
    return {spec.name.removesuffix(MASK): KeptEntries(spec) for spec in masks}
