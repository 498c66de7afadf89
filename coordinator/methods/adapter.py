"""Adapters: a frozen transformer in which small bottlenecks and the classifier alone are trained.

Source: Houlsby et al., "Parameter-efficient transfer learning for NLP"; Pfeiffer et al., "AdapterFusion", for one per
block; FedHM, journal version, for its use as a baseline of FedLoRA with bottlenecks of 8, 16, 32 and 64.
"""

from __future__ import annotations

from coordinator.config.method_options import Options
from coordinator.methods.additions import AdditionMethod
from coordinator.submodels.frozen_base import transformer_blocks
from coordinator.submodels.lora import adapted_layers
from coordinator.submodels.record import Added, LayerCut
from edge.contracts.errors import ConfigError


class Adapter(AdditionMethod):
    """Options, in kebab case, beside those of every such method:

    - ``levels``: one number, the units of a bottleneck; 8.
    - ``per-block``: 1, behind the feed-forward part (Pfeiffer), or 2, behind the attention too (Houlsby); 1.
    - ``layout``: name patterns of the linear layers that get a bottleneck, of any module, instead of ``per-block``.

    A bottleneck of m units behind O outputs has m (2 O + 1) + O parameters.
    """

    name = "adapter"
    default_size = 8
    unit = "units"

    def read_own(self, read: Options) -> None:
        """``per-block`` and ``layout``."""
        self._per_block = read.integer("per-block", 1, low=1)
        self._patterns = read.names("layout")

    def additions(self, head: str, size: int) -> dict[str, LayerCut]:
        """A bottleneck behind every layer that ``layout`` or ``per-block`` says."""
        if self._per_block > 2:
            raise ConfigError([f"$.method.per-block: {self._per_block} given, a block has room for 1 or 2"])
        record = LayerCut(added=Added("adapter", size=size))
        if self._patterns is not None:
            return {path: record for path in adapted_layers(self.module, head, self._patterns)}
        places = ("fc2", "attention.proj")[: self._per_block]
        blocks = transformer_blocks(self.module, self.name)
        return {f"{block}.{place}": record for block in blocks for place in places}
