"""Questions by a language model in torch: the summed cross-entropy of each choice."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import numpy as np

from edge.language.questions import ChoiceWindows
from edge.language.windows import IGNORED

if TYPE_CHECKING:
    from torch import nn

    from export.language.causal_model import CausalModel

_POSITIONS = 512
"""Whose logits are in memory at once: 103 MB of 50,000 symbols."""


def choice_entropy(module: nn.Module, windows: ChoiceWindows, *, batch: int, device: str = "cpu") -> np.ndarray:
    """Of each choice, float64 [N]; logits are made of the positions of choices alone.

    Args:
        batch: windows that go through the model at a time.
    """
    import torch
    import torch.nn.functional as F

    model, found = cast("CausalModel", module), np.zeros(len(windows.x))
    if not len(found):
        return found
    # What follows the longest choice of all says nothing: attention is causal.
    length = int((windows.y != IGNORED).any(0).nonzero()[0][-1]) + 1
    with torch.no_grad():
        for start in range(0, len(found), batch):
            x, y = (part[start : start + batch, :length] for part in (windows.x, windows.y))
            hidden = model.hidden(torch.tensor(x, dtype=torch.int64).to(device))
            rows, places = (y != IGNORED).nonzero()
            for first in range(0, len(rows), _POSITIONS):
                row, place = rows[first : first + _POSITIONS], places[first : first + _POSITIONS]
                targets = torch.from_numpy(y[row, place].astype(np.int64)).to(device)
                logits = model.logits(hidden[torch.from_numpy(row), torch.from_numpy(place)])
                entropy = F.cross_entropy(logits.double(), targets, reduction="none").cpu().numpy()
                np.add.at(found, start + row, entropy)
    return found
