"""The lottery-ticket check: a pruned run's final masks, the first weights, and no further pruning.

The masked model is a ticket when its accuracy per round tracks that of the whole model trained from the same weights.
Source: Frankle and Carbin, "The lottery ticket hypothesis"; PruneFL, section VI-D.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from coordinator.config.method_options import Options
from coordinator.methods.sparse import FixedMask
from edge.contracts.errors import ArtifactCorrupt, ConfigError
from edge.contracts.tensor_file import read_tensor_file


class LotteryTicket(FixedMask):
    """Options, in kebab case:

    - ``mask-file``: a run's ``checkpoints/final.safetensors``; what is 0 there is masked here; needed.
    - ``loss``, ``norm``, ``compact``: as every sparse method's.

    The first weights are those of the run's seed: take the pruned run's for the ticket, another for the control.
    """

    name = "lottery_ticket"
    path_options = ("mask-file",)

    def read_own(self, read: Options) -> None:
        """``mask-file``; raises ConfigError when it is not given, not readable or of another model."""
        given = read.text("mask-file")
        if not given:
            raise ConfigError(["$.method.mask-file: none given; name the final.safetensors of the pruned run"])
        try:
            tensors = read_tensor_file(Path(given), where=given)
        except (OSError, ArtifactCorrupt) as error:
            raise ConfigError([f"$.method.mask-file: {given} cannot be read ({error})"]) from error
        shapes = {name: tuple(p.shape) for name, p in self.module.named_parameters()}
        wrong = [n for n in self.prunable if n not in tensors or tuple(tensors[n].shape) != shapes[n]]
        if wrong:
            raise ConfigError([f"$.method.mask-file: {given} is of another model, it does not fit {wrong[:3]}"])
        self.fixed = {name: np.asarray(tensors[name] != 0) for name in self.prunable}
