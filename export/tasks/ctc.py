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
        """-log p(y) for each example, per symbol, [batch]."""
        spoken = F.log_softmax(logits, 1)
        is_symbol = (y != IGNORED).to(logits.dtype)
        said = (one_hot(y, logits.shape[1], logits.dtype).transpose(1, 2) @ spoken) + (1 - is_symbol)[
            :, :, None
        ] * _NEVER
        blank = spoken[:, 0]
        # States: blank, y1, blank, y2, ..., blank. A symbol is reached over a blank, and from another symbol directly.
        differs = torch.cat([torch.zeros_like(y[:, :1]), (y[:, 1:] != y[:, :-1]).to(y.dtype)], 1).to(logits.dtype)
        symbols = said.new_full(said.shape[:2], _NEVER) + torch.cat([said[:, :1, 0] - _NEVER, said[:, 1:, 0] * 0], 1)
        blanks = torch.cat([blank[:, :1], said[:, :, 0] * 0 + _NEVER], 1)
        for frame in range(1, logits.shape[2]):
            earlier = torch.cat([said[:, :1, 0] * 0 + _NEVER, symbols[:, :-1]], 1)
            jumped = earlier * differs + (1 - differs) * _NEVER
            reached = _logsum(_logsum(symbols, blanks[:, :-1]), jumped)
            rested = _logsum(blanks, torch.cat([said[:, :1, 0] * 0 + _NEVER, symbols], 1))
            symbols, blanks = reached + said[:, :, frame], rested + blank[:, frame : frame + 1]
        # The last symbol of an example, or the blank behind it.
        count = is_symbol.sum(1, keepdim=True)
        places = torch.arange(1, self._length + 1, device=y.device).to(logits.dtype)[None]
        last = (places == count).to(logits.dtype)
        ends = _logsum(symbols, blanks[:, 1:])
        return -(ends * last).sum(1) / torch.clamp(count[:, 0], min=1.0)


def _logsum(a: Tensor, b: Tensor) -> Tensor:
    """log(exp a + exp b), without the branch of torch's own operation, which not every runtime has."""
    most = torch.maximum(a, b)
    return most + torch.log1p(torch.exp(-torch.abs(a - b)))
