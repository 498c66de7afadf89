"""Prefix tuning: a frozen transformer; keys and values before those of each attention, and the classifier, are trained.

Source: Li and Liang, "Prefix-tuning: optimizing continuous prompts for generation"; FedHM, journal version, for its use
as a baseline of FedLoRA with re-parameterisations of 4, 8, 16 and 32 hidden units.
"""

from __future__ import annotations

from coordinator.config.method_options import Options
from coordinator.methods.additions import AdditionMethod
from coordinator.submodels.frozen_base import transformer_blocks
from coordinator.submodels.record import Added, LayerCut


class Prefix(AdditionMethod):
    """Options, in kebab case, beside those of every such method:

    - ``levels``: one number, the hidden units of the re-parameterisation; 4.
    - ``length``: tokens of the prefix; 10, which Li and Liang take for table-to-text.
    - ``layout``: name patterns of the blocks that get one; all of them.

    A block of width W gets L W tokens and a perceptron of h (3 W + 1) + 2 W parameters. The model's function changes
    with the first values already: attention is shared with the prefix.
    """

    name = "prefix"
    default_size = 4
    unit = "hidden units"

    def read_own(self, read: Options) -> None:
        """``length`` and ``layout``."""
        self._length = read.integer("length", 10, low=1)
        self._patterns = read.names("layout")

    def additions(self, head: str, size: int) -> dict[str, LayerCut]:
        """A prefix before the attention of every block."""
        record = LayerCut(added=Added("prefix", size=size, length=self._length))
        blocks = transformer_blocks(self.module, self.name, self._patterns)
        return {f"{block}.attention": record for block in blocks}
