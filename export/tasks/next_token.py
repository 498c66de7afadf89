"""Next-token prediction: of each position of a sequence, the symbol that comes after it."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from torch import Tensor

from edge.contracts.manifest import InputSpec
from edge.language.questions import HITS, MEAN_HITS, QUESTIONS
from export.tasks.class_places import entropy_sums, mean_entropy
from export.tasks.task import Batch, Better, Model, class_target, ratio
from export.training_step import BatchTensor

CHOICE, CHOICE_MEAN = "choice_accuracy", "choice_mean_accuracy"
"""Metrics of questions, where a run or a device has any."""


class NextToken:
    """Logits [batch, vocabulary, positions] held against ``y`` [positions], the symbols that follow; ``classes`` of the
    model are the vocabulary, that of its input where they are not given. -100 is a position that counts nothing.

    Questions add the share of them whose right choice has the highest summed log-likelihood, and the highest mean of a
    symbol's.

    Raises:
        ValueError: an input that is no sequence of symbols.
    """

    better: Mapping[str, Better] = {
        "perplexity": "lower",
        "accuracy": "higher",
        CHOICE: "higher",
        CHOICE_MEAN: "higher",
    }

    def tensors(self, input: InputSpec, classes: int) -> tuple[BatchTensor, ...]:
        if input.dtype != "int64":
            raise ValueError(f"next-token needs symbols, the input is {input.dtype} {input.shape}")
        # Of a language model nobody names the classes; they are what its input is made of.
        return (class_target(classes if classes > 1 else input.vocabulary, *input.shape),)

    def training_step(self, model: Model, batch: Batch) -> Tensor:
        return mean_entropy(model(batch["x"]), batch["y"])

    def evaluation_step(self, model: Model, batch: Batch) -> dict[str, Tensor]:
        entropy, count, hits = entropy_sums(model(batch["x"]), batch["y"])
        return {"entropy": entropy, "hits": hits, "positions": count}

    def metrics(self, sums: Mapping[str, np.ndarray]) -> dict[str, float]:
        entropy = ratio(sums["entropy"], sums["positions"])
        found = {"perplexity": math.exp(min(entropy, 700.0)), "accuracy": ratio(sums["hits"], sums["positions"])}
        if (questions := sums.get(QUESTIONS)) is not None and questions:
            found |= {CHOICE: ratio(sums[HITS], questions), CHOICE_MEAN: ratio(sums[MEAN_HITS], questions)}
        return found
