"""Accuracy and loss of the models a method evaluates, on the coordinator's held-out data, with torch.

Which model, which normalisation and which batch are part of a result; they are recorded in ``summary.json``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from coordinator.data.inputs import prepare_inputs
from coordinator.submodels.build import apply_cut
from coordinator.submodels.inference_form import inference_form
from coordinator.submodels.memory_layout import lets_channels_last
from coordinator.submodels.precision import DTYPES, in_precision
from coordinator.submodels.values import Submodel

if TYPE_CHECKING:
    import numpy as np
    from torch import nn

    from coordinator.config.run_config import Precision
    from edge.contracts.manifest import InputSpec


COMPARED = 8
"""Examples by which the form that a module is scored in is held against the module."""


@dataclass(frozen=True)
class Score:
    """Mean loss over the held-out examples, and the share of them that are right; of a task its metrics instead."""

    loss: float
    accuracy: float
    examples: int
    metrics: Mapping[str, float] | None = None

    def values(self) -> dict[str, float]:
        """Metric -> value, the run's own one first."""
        return {**({"accuracy": self.accuracy} if self.metrics is None else self.metrics), "loss": self.loss}


class Evaluator:
    """Scores submodels of one dense module on one held-out set, in file order.

    Args:
        module: gives a fresh dense module; its weights are replaced.
        norm: ``running`` uses the model's buffers (static statistics are buffers too), ``batch`` each batch's own.
        device: where torch computes, ``cpu`` or ``cuda``.
        precision: of the factors of products.
    """

    def __init__(
        self,
        module: Callable[[], nn.Module],
        x: np.ndarray,
        y: np.ndarray,
        spec: InputSpec,
        *,
        batch: int,
        norm: str,
        device: str = "cpu",
        precision: Precision = "float32",
    ) -> None:
        self._module = module
        self.inputs = prepare_inputs(x, spec)
        self.labels = y
        self.batch = batch
        self.norm = norm
        self._device, self._precision = device, precision

    def score(self, submodel: Submodel) -> Score:
        """The score of one model."""
        return self.score_of(self.outputs(submodel))

    def outputs(self, submodel: Submodel) -> np.ndarray:
        """What :meth:`score_of` reads, of these examples; that of several parts of them follows one after the other."""
        return self.logits(submodel)

    def score_of(self, outputs: np.ndarray) -> Score:
        """The score by :meth:`outputs` of all examples."""
        return score_logits(outputs, self.labels)

    def logits(self, submodel: Submodel) -> np.ndarray:
        """Logits [N, classes] of one model, float32."""
        import numpy as np
        import torch

        module = evaluated_module(self._module(), submodel, self.norm, self._device)
        is_last = lets_channels_last(module, self.inputs.shape[1:])
        layout = torch.channels_last if is_last else torch.contiguous_format
        module = module.to(memory_format=layout) if is_last else module

        def given(first: int, count: int) -> torch.Tensor:
            # torch.tensor copies: how an array is aligned decides the last bits of a product.
            return torch.tensor(self.inputs[first : first + count]).to(self._device, memory_format=layout)

        if self.norm != "batch" and self.inputs.ndim == 4:
            module = inference_form(module, given(0, COMPARED))
        scored = in_precision(module, DTYPES[self._precision], self._device)
        with torch.no_grad():
            parts = [scored(given(i, self.batch)).cpu().numpy() for i in range(0, len(self.inputs), self.batch)]
        return np.concatenate(parts)


def evaluated_module(dense: nn.Module, submodel: Submodel, norm: str, device: str) -> nn.Module:
    """``dense`` as ``submodel``, with its tensors, as it is evaluated."""
    import numpy as np
    import torch

    module = apply_cut(dense, submodel.cut)
    state = {name: torch.from_numpy(np.array(value)) for name, value in submodel.tensors.items()}
    module.load_state_dict(state, strict=True)
    module.eval().to(device)
    if norm == "batch":
        for child in module.modules():
            if isinstance(child, torch.nn.modules.batchnorm._BatchNorm):
                child.train()
    return module


def score_logits(logits: np.ndarray, labels: np.ndarray) -> Score:
    """The score of logits [N, classes, ...] against class indices [N, ...]."""
    import numpy as np
    import torch

    targets = torch.from_numpy(np.asarray(labels, np.int64))
    loss = torch.nn.functional.cross_entropy(torch.from_numpy(logits).double(), targets)
    correct = int((logits.argmax(1) == labels).sum())
    return Score(float(loss), correct / len(labels), len(labels))
