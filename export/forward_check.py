"""Whether a module runs at all on the input it is exported for: what fails here is the module's own failure.

Asked before tracing, so that whatever goes wrong afterwards is the exporter's fault and not the user's.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor, nn

from edge.contracts.errors import ApportionError, ExportRefused
from export.training_step import StepSpec

BATCH = 2


def check_forward(module: nn.Module, spec: StepSpec, dtype: Literal["float32", "float64"] = "float32") -> None:
    """Check that a copy of ``module`` runs one batch in train mode; the caller's random state stays as it was.

    Args:
        dtype: what the devices compute in, or the parity gate's reference.

    Raises:
        ExportRefused: it raised; names the innermost layer that did, the input's shape and its error.
    """
    kind = torch.float32 if dtype == "float32" else torch.float64
    probe = copy.deepcopy(module).to(kind).train()
    with torch.random.fork_rng(devices=[]), torch.no_grad(), running_layers(probe) as running:
        torch.manual_seed(0)
        run_batch(probe, probe_batch(spec, BATCH, kind), running, kind)


def probe_batch(spec: StepSpec, batch: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Random examples of the step's input, from torch's generator."""
    shape = (batch, *spec.input.shape)
    if spec.input.dtype == "int64":
        return torch.randint(0, spec.input.vocabulary, shape)
    return torch.randn(shape, dtype=dtype)


def run_batch(probe: nn.Module, x: Tensor, running: list[str], dtype: torch.dtype = torch.float32) -> None:
    """One forward pass.

    Args:
        running: of :func:`running_layers`.

    Raises:
        ExportRefused: as :func:`check_forward`.
    """
    try:
        probe(x)
    except ApportionError:
        raise
    except Exception as error:  # the module may be anyone's
        where = (running[-1] if running else "") or "(the module itself)"
        fails = f"the module's forward fails on an input of shape {list(x.shape)}"
        instead = "the shape it is made for, or mend the module"
        if dtype == torch.float64:
            fails = "the module's forward fails in float64, the parity gate's reference"
            instead = "x.new_zeros(...), x.dtype and the like, which follow the input's type,"
        raise ExportRefused(where, f"{fails}: {type(error).__name__}: {error}", instead=instead) from error


@contextmanager
def running_layers(module: nn.Module, watch: Callable[[str], None] = lambda path: None) -> Iterator[list[str]]:
    """The paths of the layers being run, innermost last.

    Args:
        watch: called with the innermost path whenever it is about to change.
    """
    running: list[str] = []
    handles = []
    for name, part in module.named_modules():

        def enter(_part: nn.Module, _inputs: object, path: str = name) -> None:
            watch(running[-1] if running else "")
            running.append(path)

        def leave(_part: nn.Module, _inputs: object, _output: object) -> None:
            watch(running[-1])
            running.pop()

        handles += [part.register_forward_pre_hook(enter), part.register_forward_hook(leave)]
    try:
        yield running
    finally:
        for handle in handles:
            handle.remove()
