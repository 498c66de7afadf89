"""Multi-label classification: each example has any number of the classes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from edge.contracts.manifest import InputSpec
from export.tasks.task import Batch, Better, Model, ratio
from export.training_step import BatchTensor

BINS = 16
"""Of the histogram of scores that AUROC is made from."""


class MultiLabel:
    """Logits [batch, classes] held against ``y`` [classes] of 0 and 1, by binary cross-entropy.

    Metrics: F1 over all decisions at 0.5 (micro), its mean over the classes (macro), and AUROC over all decisions from
    two histograms of 16 bins, an estimate to 1/16 of the scores' range.
    """

    better: Mapping[str, Better] = {"f1": "higher", "macro_f1": "higher", "auroc": "higher"}

    def tensors(self, input: InputSpec, classes: int) -> tuple[BatchTensor, ...]:
        return (BatchTensor("y", (classes,), "float32"),)

    def training_step(self, model: Model, batch: Batch) -> Tensor:
        # The stable form, written out: softplus is one operation in every runtime.
        logits = model(batch["x"])
        return (F.softplus(logits) - logits * batch["y"]).mean()

    def evaluation_step(self, model: Model, batch: Batch) -> dict[str, Tensor]:
        logits, wanted = model(batch["x"]), batch["y"]
        said = (logits > 0).to(wanted.dtype)
        place = torch.sigmoid(logits) * BINS
        edges = [((place >= edge).to(wanted.dtype) * wanted).sum() for edge in range(1, BINS)]
        others = [((place >= edge).to(wanted.dtype) * (1 - wanted)).sum() for edge in range(1, BINS)]
        return {
            "both": (said * wanted).sum(0),
            "said": said.sum(0),
            "wanted": wanted.sum(0),
            "decisions": (wanted * 0 + 1).sum(),
            "true_above": torch.stack(edges),
            "false_above": torch.stack(others),
        }

    def metrics(self, sums: Mapping[str, np.ndarray]) -> dict[str, float]:
        each = [
            ratio(2 * both, said + wanted)
            for both, said, wanted in zip(sums["both"], sums["said"], sums["wanted"], strict=True)
        ]
        true, false = sums["wanted"].sum(), sums["decisions"] - sums["wanted"].sum()
        # From the strictest threshold to none: an ROC curve's corners.
        rises = np.array([0.0, *sums["true_above"][::-1], true]) / max(true, 1.0)
        falses = np.array([0.0, *sums["false_above"][::-1], false]) / max(false, 1.0)
        return {
            "f1": ratio(2 * sums["both"].sum(), sums["said"].sum() + sums["wanted"].sum()),
            "macro_f1": float(np.mean(each)),
            "auroc": float(np.sum((falses[1:] - falses[:-1]) * (rises[1:] + rises[:-1]) / 2)),
        }
