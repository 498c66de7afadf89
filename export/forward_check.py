"""Whether a module runs at all on the input it is exported for: what fails here is the module's own failure.

Asked before tracing, so that whatever goes wrong afterwards is the exporter's fault and not the user's.
"""

from __future__ import annotations

import copy
from typing import Literal

import torch
from torch import nn

from edge.contracts.errors import ExportRefused
from export.training_step import StepSpec

BATCH = 2


def check_forward(module: nn.Module, spec: StepSpec, dtype: Literal["float32", "float64"] = "float32") -> None:
    """Nothing when a copy of ``module`` runs one batch in train mode; the caller's random state stays as it was.

    Args:
        dtype: what the devices compute in, or the parity gate's reference.

    Raises:
        ExportRefused: it raised; names the innermost layer that did, the input's shape and its error.
    """
    running: list[str] = []
    kind = torch.float32 if dtype == "float32" else torch.float64
    probe = copy.deepcopy(module).to(kind).train()
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
        x = (
            torch.randint(0, spec.input.vocabulary, shape)
            if spec.input.dtype == "int64"
            else torch.randn(shape, dtype=kind)
        )
        try:
            probe(x)
        except Exception as error:  # the module may be anyone's
            where = (running[-1] if running else "") or "(the module itself)"
            fails = f"the module's forward fails on an input of shape {list(shape)}"
            instead = "the shape it is made for, or mend the module"
            if dtype == "float64":
                fails = "the module's forward fails in float64, the parity gate's reference"
                instead = "x.new_zeros(...), x.dtype and the like, which follow the input's type,"
            raise ExportRefused(where, f"{fails}: {type(error).__name__}: {error}", instead=instead) from error
