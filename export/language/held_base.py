"""A language model with the values of its base, for computing with it in torch: the values are constants of the module.

They are no parameters: what a step carries, trains or sends are the factors alone. Copies of the module share them.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor, nn

from export.language.base_weights import dequantised, held, matrices
from export.language.causal_model import CausalModel, meta_model


def with_base(module: CausalModel, values: Iterable[tuple[str, np.ndarray]], *, device: str = "cpu") -> CausalModel:
    """A module like ``module`` that computes with ``values`` as its base file holds them, dequantised.

    Args:
        values: (name, float32 array) of every tensor; they are not kept.

    Raises:
        KeyError: a tensor that the module does not have, or one that is missing.
    """
    made = meta_model(module.architecture, module.base_precision)
    quantised = matrices(made)
    for name, value in values:
        path, _, leaf = name.rpartition(".")
        part = made.get_submodule(path)
        if name in quantised:
            value = dequantised(name, held(name, value, module.base_precision))
        del part._parameters[leaf]
        setattr(part, leaf, torch.tensor(np.asarray(value, np.float32)).to(device))
    if left := [name for name, _ in made.named_parameters()]:
        raise KeyError(f"the base has no {left[0]}")
    return made.train(module.training)


def shared_values(module: nn.Module) -> dict[int, Tensor]:
    """What copies of ``module`` share, as :func:`copy.deepcopy` takes it for its memo: constants that are no state."""
    values = (value for part in module.modules() for value in vars(part).values() if isinstance(value, Tensor))
    return {id(value): value for value in values}
