"""Connectionist temporal classification: symbols in order, without saying where in the input they are."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from edge.contracts.manifest import InputSpec
from export.tasks.class_places import IGNORED, one_hot
from export.tasks.task import Batch, Better, Model, ratio
from export.training_step import BatchTensor

_NEVER = -1e4
"""The logarithm of a path that cannot be: far below any real one, and no infinity whose gradient is no number."""


class Ctc:
    """Logits [batch, classes, frames], class 0 the blank, held against ``y`` [length]: symbols from 1, then -100.

    The forward recursion over the frames is written out, so its gradient is the compiled step's. Accuracy is of whole
    examples, the best class of each frame with repetitions and blanks taken out being ``y`` (greedy decoding).
    Source: Graves et al., ICML 2006, equations 6 to 8.

    Args:
        length: most symbols of an example.
    """

    better: Mapping[str, Better] = {"accuracy": "higher"}

    def __init__(self, length: int = 4) -> None:
        if length < 1:
            raise ValueError(f"length = {length}; at least 1 symbol expected")
        self._length = length

    def tensors(self, input: InputSpec, classes: int) -> tuple[BatchTensor, ...]:
        return (BatchTensor("y", (self._length,), "int64", symbols=classes),)

    def training_step(self, model: Model, batch: Batch) -> Tensor:
        return self._losses(model(batch["x"]), batch["y"]).mean()

    def evaluation_step(self, model: Model, batch: Batch) -> dict[str, Tensor]:
        logits, y = model(batch["x"]), batch["y"]
        best = logits.argmax(1)
        before = torch.cat([torch.zeros_like(best[:, :1]), best[:, :-1]], 1)
        starts = ((best != before) & (best > 0)).to(logits.dtype)
        place = torch.cumsum(starts, 1) * starts
        same = place.new_zeros(place.shape[0])
        for position in range(self._length):
            said = (best.to(logits.dtype) * (place == position + 1).to(logits.dtype)).sum(1)
            wanted = torch.clamp(y[:, position], min=0).to(logits.dtype)
            same = same + (said == wanted).to(logits.dtype)
        fits = (starts.sum(1) <= self._length).to(logits.dtype)
        return {"right": ((same == self._length).to(logits.dtype) * fits).sum()}

    def metrics(self, sums: Mapping[str, np.ndarray]) -> dict[str, float]:
        return {"accuracy": ratio(sums["right"], sums["examples"])}

    def _losses(self, logits: Tensor, y: Tensor) -> Tensor:
        """-log p(y) for each example, per symbol, [batch].

        States are blank, y1, blank, y2, ..., blank: [batch, 2 length + 1].
        """
        spoken, states = F.log_softmax(logits, 1), 2 * self._length + 1
        is_symbol = (y != IGNORED).to(logits.dtype)
        wanted = one_hot(y, logits.shape[1], logits.dtype).transpose(1, 2)
        said = (wanted @ spoken) + (1 - is_symbol)[:, :, None] * _NEVER
        blank = spoken[:, :1]
        beside = torch.stack([said * 0 + blank, said], 2).flatten(1, 2)
        emitted = torch.cat([beside, blank], 1)
        # A symbol is reached over a blank, and directly from another symbol before that.
        differs = torch.cat([y[:, :1] * 0, (y[:, 1:] != y[:, :-1]).to(y.dtype)], 1).to(logits.dtype)
        jumps = torch.cat([torch.stack([differs * 0, differs], 2).flatten(1), differs[:, :1] * 0], 1)
        closed = (1 - jumps) * _NEVER
        place = torch.arange(states, device=y.device).to(logits.dtype)[None]
        path = emitted[:, :, 0] + (place > 1).to(logits.dtype) * _NEVER
        never = emitted[:, :2, 0] * 0 + _NEVER
        for frame in range(1, logits.shape[2]):
            one, two = torch.cat([never[:, :1], path[:, :-1]], 1), torch.cat([never, path[:, :-2]], 1) + closed
            most = torch.maximum(torch.maximum(path, one), two)
            whole = torch.exp(path - most) + torch.exp(one - most) + torch.exp(two - most)
            path = most + torch.log(whole) + emitted[:, :, frame]
        # It ends in the last symbol of an example, or in the blank behind it.
        last = 2 * is_symbol.sum(1, keepdim=True)
        silent = (path * (place == last).to(logits.dtype)).sum(1)
        spoken_last = (path * (place == last - 1).to(logits.dtype)).sum(1) + (1 - is_symbol[:, 0]) * _NEVER
        most = torch.maximum(silent, spoken_last)
        total = most + torch.log(torch.exp(silent - most) + torch.exp(spoken_last - most))
        return -total / torch.clamp(last[:, 0] / 2, min=1.0)
