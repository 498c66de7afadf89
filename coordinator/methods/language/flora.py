"""FLoRA: the devices' factors are stacked, weighted by examples, and what a small rank has no room for is not lost.

The difference D that was learnt goes on as D + sum p_i (u_i v_i - D_i), D_i what device i was sent of it: its
components at the device's rank. So a component that only some devices hold moves by their training and stays otherwise,
where a mean of products would take its absence for a step to zero.
Source: Wang et al., FLoRA (NeurIPS 2024), equation 7: stacking makes the sum of products exact. There devices merge the
stack into weights of their own and begin with new factors; here the base is one file that nobody writes, so that D is
kept as components, and a device begins with those it has room for.
"""

from __future__ import annotations

import numpy as np

from coordinator.methods.language.language_method import LanguageMethod
from coordinator.submodels.stacked_factors import FactorStack
from coordinator.submodels.values import State


class FLoRA(LanguageMethod):
    """Options are those of :class:`LanguageMethod`."""

    name = "flora"

    def keep_unsent(self, state: State, path: str, stack: FactorStack, shares_R: np.ndarray) -> None:
        """As :meth:`LanguageMethod.keep_unsent`: each component, by the share of devices that did not get it."""
        u_OR, v_RI = state.tensors[f"{path}.u"], state.tensors[f"{path}.v"]
        stack.add(u_OR, v_RI, 1.0 - shares_R)
