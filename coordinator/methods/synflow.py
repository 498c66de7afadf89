"""SynFlow: masks made before training and without data, from how much of a flow of ones each weight carries.

Source: Tanaka et al., "Pruning neural networks without any data by iteratively conserving synaptic flow", Algorithm 1.
"""

from __future__ import annotations

import copy

import numpy as np
import torch
from torch import nn

from coordinator.config.method_options import Options
from coordinator.methods.sparse import FixedMask
from coordinator.pruning.masks import top_scores
from edge.contracts.errors import ConfigError, PlanError


class SynFlow(FixedMask):
    """Options, in kebab case:

    - ``density``: share of the prunable weights kept; 0.1.
    - ``input``: shape of one example, because the flow starts from an input of ones; by default the module's own.
    - ``passes``: over which the density falls, geometrically; 100.
    - ``loss``, ``norm``, ``compact``: as every sparse method's.
    """

    name = "synflow"

    def read_own(self, read: Options) -> None:
        """``density``, ``input``, ``passes``; raises ConfigError without an input's shape."""
        density = read.number("density", 0.1, low=0, strict=True)
        spec = getattr(self.module, "input_spec", None)
        shape = read.sequence("input", low=1) or (() if spec is None else spec.shape)
        passes = read.integer("passes", 100, low=1)
        if density is None or density > 1 or not shape:
            raise ConfigError([f"$.method.density: {density} with input {shape}; a share up to 1 and a shape needed"])
        if any(isinstance(part, nn.Embedding) for part in self.module.modules()):
            raise PlanError(
                f"synflow sends ones through the model, and {type(self.module).__name__} takes indices; use snip"
            )
        self.fixed = synaptic_flow(self.module, self.prunable, tuple(int(s) for s in shape), density, passes)


def synaptic_flow(
    module: nn.Module, names: tuple[str, ...], shape: tuple[int, ...], density: float, passes: int
) -> dict[str, np.ndarray]:
    """Masks of the share ``density`` of the named weights that carries most of the flow of ones through |weights|.

    Args:
        shape: of one example.
        passes: after pass i of n the density is ``density ** (i / n)``, and scores are taken again.

    Source: SynFlow, Algorithm 1: score |dR/d|w| * |w||, R the sum of the outputs; in double precision, since R grows
    with depth, and with norms in evaluation mode.
    """
    linear = copy.deepcopy(module).double().eval()
    parameters = dict(linear.named_parameters())
    with torch.no_grad():
        for parameter in parameters.values():
            parameter.abs_()
    whole = {name: parameters[name].detach().clone() for name in names}
    masks = {name: np.ones(tuple(whole[name].shape), bool) for name in names}
    ones = torch.ones((1, *shape), dtype=torch.float64)
    for step in range(1, passes + 1):
        with torch.no_grad():
            for name in names:
                parameters[name].copy_(whole[name] * torch.from_numpy(masks[name]))
        flow = linear(ones).sum()
        gradients = torch.autograd.grad(flow, [parameters[name] for name in names])
        scores = {n: (g * parameters[n].detach()).abs().numpy() for n, g in zip(names, gradients, strict=True)}
        masks = top_scores(scores, density ** (step / passes))
    return masks
