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
from export.model_call import ModelCall
from export.task_steps import evaluation_sums, training_loss
from export.tasks.resolved import task_of
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
        batch = probe_batch(spec, BATCH, kind)
        run_forward(probe, spec, batch, running, kind)
        if spec.task:
            run_forward(probe.eval(), spec, batch, running, kind)


def probe_batch(spec: StepSpec, count: int, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """Random examples from torch's generator: ``x``, and of a task what else a batch has."""
    shape = (count, *spec.input.shape)
    is_symbols = spec.input.dtype == "int64"
    batch = {"x": torch.randint(0, spec.input.vocabulary, shape) if is_symbols else torch.randn(shape, dtype=dtype)}
    for tensor in spec.tensors:
        shape = (count, *tensor.shape)
        drawn = torch.rand(shape, dtype=dtype) if tensor.dtype == "float32" else torch.randint(0, tensor.symbols, shape)
        batch[tensor.name] = drawn
    return batch


def run_forward(
    probe: nn.Module,
    spec: StepSpec,
    batch: dict[str, Tensor],
    running: list[str],
    dtype: torch.dtype = torch.float32,
) -> None:
    """One forward pass, as the step makes it; in evaluation mode a task's evaluation, too.

    Args:
        batch: of :func:`probe_batch`.
        running: of :func:`running_layers`.

    Raises:
        ExportRefused: as :func:`check_forward`, or naming the line of the task.
    """
    if spec.task:
        task, model = task_of(spec, probe), ModelCall(probe)
        training_loss(task, model, batch, spec.task)
        if not probe.training:
            evaluation_sums(task, model, batch, spec.task)
        return
    x = batch["x"]
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
