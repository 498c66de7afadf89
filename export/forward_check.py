"""Whether a module runs at all on the input it is exported for: what fails here is the module's own failure.

Asked before tracing, so that whatever goes wrong afterwards is the exporter's fault and not the user's.
"""

from __future__ import annotations

import copy

import torch
from torch import nn

from edge.contracts.errors import ExportRefused
from export.training_step import StepSpec

BATCH = 2


def check_forward(module: nn.Module, spec: StepSpec) -> None:
    """Nothing when a copy of ``module`` runs one batch in train mode; the caller's random state stays as it was.

    Raises:
        ExportRefused: it raised; names the innermost layer that did, the input's shape and its error.
    """
    running: list[str] = []
    probe = copy.deepcopy(module).float().train()
    for name, part in probe.named_modules():

        def enter(_part: nn.Module, _inputs: object, path: str = name) -> None:
            running.append(path)

        def leave(_part: nn.Module, _inputs: object, _output: object) -> None:
            running.pop()

        part.register_forward_pre_hook(enter)
        part.register_forward_hook(leave)
    shape = (BATCH, *spec.input.shape)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        x = torch.randint(0, spec.input.vocabulary, shape) if spec.input.dtype == "int64" else torch.randn(shape)
        try:
            probe(x)
        except Exception as error:  # the module may be anyone's
            where = (running[-1] if running else "") or "(the module itself)"
            raise ExportRefused(
                where,
                f"the module's forward fails on an input of shape {list(shape)}: {type(error).__name__}: {error}",
                instead="the shape it is made for, or mend the module",
            ) from error
