"""FedLoRA of a language model: the mean of the devices' products, ranks and depths mixed, as its components.

What :class:`coordinator.methods.fedlora.FedLoRA` computes, without a dense difference: a level gets the best
approximation of the mean at its rank, and what returns is averaged as products, over the devices that have the layer.
Source: FedHM, journal version, its section on low-rank adaptation.
"""

from __future__ import annotations

import math

from coordinator.config.method_options import Options
from coordinator.methods.language.language_method import LanguageMethod
from coordinator.submodels.values import Level


class LanguageFedLoRA(LanguageMethod):
    """Options beside those of :class:`LanguageMethod`:

    - ``temperature``: tau of the weights softmax(gamma / tau), gamma the rank relative to the largest; 1.
    - ``weight-by-examples``: multiply the weights with ``num_examples``; false, as in the paper.
    """

    name = "fedlora"

    def read_own(self, read: Options) -> None:
        """As :meth:`LanguageMethod.read_own`."""
        temperature = read.number("temperature", 1.0, low=0, strict=True)
        self._temperature = 1.0 if temperature is None else temperature
        self._by_examples = read.flag("weight-by-examples", False)

    def weight(self, level: Level, num_examples: int) -> float:
        """Numerator of the softmax over participants, scaled to 1 for the largest rank."""
        gamma = level.value / self.ladder.largest_rank
        return math.exp((gamma - 1) / self._temperature) * (num_examples if self._by_examples else 1)
