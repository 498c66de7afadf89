"""Adapters of a language model: a trained bottleneck behind the feed-forward part of each block.

Source: Houlsby et al., "Parameter-efficient transfer learning for NLP"; Pfeiffer et al., "AdapterFusion", for one per
block. Units of a bottleneck are no basis that turns: unit j is the same one on every device, so that sizes mix.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from coordinator.methods.language.addition import LanguageAddition, blocks_of
from coordinator.submodels.record import Added, LayerCut

if TYPE_CHECKING:
    from coordinator.submodels.narrowed import Slice


class LanguageAdapter(LanguageAddition):
    """Options, in kebab case:

    - ``levels``: units of a bottleneck, one number or several; 8.
    - ``depths``: the last so many blocks have one, one number or several; all of them. No device runs a backward pass
      below its own.

    A bottleneck of m units has m (2 D + 1) + D parameters at hidden width D. GELU in its tanh form; ``up`` is zero at
    first: the model begins as the base.
    """

    name = "adapter"
    default_size = 8
    unit = "units"
    has_depth = True

    def record(self, size: int) -> LayerCut:
        """As :meth:`LanguageAddition.record`."""
        return LayerCut(added=Added("adapter", size=size))

    def places(self, blocks: int, depth: int) -> list[str]:
        """The feed-forward parts."""
        return [f"blocks.{number}.feed_forward" for number in blocks_of(blocks, depth)]

    def drawn(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        """Normal rows of unit fan-in in ``down``, zero in all else."""
        if name.endswith(".down"):
            return self.normal(name, shape, shape[1] ** -0.5)
        return np.zeros(shape, np.float32)

    def held(self, name: str, size: int) -> Slice | None:
        """The first units."""
        units, part = np.arange(size), name.rpartition(".")[2]
        return {"down": (units, None), "down_bias": (units,), "up": (None, units)}.get(part)
