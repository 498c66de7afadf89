"""Prompt tuning of a language model: trained embeddings before those of the symbols.

Source: Lester et al., "The power of scale for parameter-efficient prompt tuning".
"""

from __future__ import annotations

import numpy as np

from coordinator.methods.language.addition import DEVIATION, LanguageAddition
from coordinator.submodels.record import Added, LayerCut


class LanguagePrompt(LanguageAddition):
    """Options, in kebab case:

    - ``levels``: one number, virtual positions; 16. Lengths do not mix: where symbols stand depends on the length.

    A prompt of P positions has P D parameters at hidden width D. Every block works on P positions more, and the
    backward pass goes through all of them. The model's function changes with the first values already. Where its
    positions stand is in :mod:`export.language.additions`.
    """

    name = "prompt"
    default_size = 16
    unit = "positions"
    one_size_only = "where symbols stand depends on the length"

    def record(self, size: int) -> LayerCut:
        """As :meth:`LanguageAddition.record`."""
        return LayerCut(added=Added("prompt", length=size))

    def places(self, blocks: int, depth: int) -> list[str]:
        """What gives the symbols' embeddings."""
        return ["embedding"]

    def drawn(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        """Normal values as large as those of a random model's embedding."""
        return self.normal(name, shape, DEVIATION * self.architecture.embedding_scale)
