"""Prefix tuning of a language model: trained keys and values before those of each block's attention.

Source: Li and Liang, "Prefix-tuning: optimizing continuous prompts for generation", without the perceptron that makes
the prefix in training there: it is in no run's final model, and no ``peft`` file without ``prefix_projection`` has it.
"""

from __future__ import annotations

import numpy as np

from coordinator.methods.language.addition import DEVIATION, LanguageAddition, blocks_of
from coordinator.submodels.record import Added, LayerCut


class LanguagePrefix(LanguageAddition):
    """Options, in kebab case:

    - ``levels``: one number, virtual positions; 16. Lengths do not mix: where symbols stand, and what share of its
      attention a symbol gives to the prefix, depend on the length, so that one device's keys are not another's.
    - ``depths``: the last so many blocks have one, one number or several; all of them.

    A prefix of P positions has 2 P K H parameters a block, K key heads of size H. The model's function changes with the
    first values already: attention is shared with the prefix. Where its positions stand is in
    :mod:`export.language.additions`.
    """

    name = "prefix"
    default_size = 16
    unit = "positions"
    one_size_only = "where symbols stand depends on the length"
    has_depth = True

    def record(self, size: int) -> LayerCut:
        """As :meth:`LanguageAddition.record`."""
        return LayerCut(added=Added("prefix", length=size))

    def places(self, blocks: int, depth: int) -> list[str]:
        """The attentions."""
        return [f"blocks.{number}.attention" for number in blocks_of(blocks, depth)]

    def drawn(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        """Small normal values."""
        return self.normal(name, shape, DEVIATION)
