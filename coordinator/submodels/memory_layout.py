"""Whether a module's convolutions may see images with channels last, which is the faster layout of most of them."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn


def lets_channels_last(module: nn.Module, shape: Sequence[int]) -> bool:
    """Whether ``module`` has convolutions of images and gives its outputs with channels last, too.

    One that looks at memory as if channels came first (``view``) does not. The module is left as it is.

    Args:
        shape: of one example.
    """
    import torch

    if len(shape) != 3 or not any(isinstance(part, torch.nn.Conv2d) for part in module.modules()):
        return False
    first = next(module.parameters())
    x = torch.zeros((2, *shape), device=first.device).contiguous(memory_format=torch.channels_last)
    try:
        with torch.no_grad():
            copy.deepcopy(module).eval().to(memory_format=torch.channels_last)(x)
    except RuntimeError:
        return False
    return True
