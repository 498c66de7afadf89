"""The memory that an export of a step would predict, without exporting it: the step is run on the meta device.

Nothing is computed there, but values are made and let go as autograd makes and lets them go, and that is what the
graphs of all formats do but for a few operations. Against exports: tests/coordinator/submodels/test_step_memory.py.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from coordinator.submodels.costs import NORMS, NORMS_BACKWARD, shaped
from edge.contracts.tensors import STATE_ROLES, concrete_shape
from export.formats.of_module import format_of
from export.memory_plan import MemoryPlan
from export.programs import program_functions

if TYPE_CHECKING:
    from export.formats import Format
    from export.training_step import StepSpec

_NODES_PER_OPERATION, _NODES_PER_NORM = 1.5, 32
"""Nodes of an artifact's graphs. Measured on 13 exports of seven models: within 550 of the 100 to 2,150 that they have,
which at 3 kB a node is 1.6 MB. An LSTM's loop is one operation here and 3,400 nodes there, 10 MB."""


def step_growth_bytes(module: nn.Module, spec: StepSpec, runtime: str) -> int:
    """What an export of ``spec`` should state as ``predicted_peak_bytes``: of the trainer above an idle one.

    Args:
        module: as it is cut; its weights are not read.

    Raises:
        ExportRefused: a layer that no step can have.
        RuntimeError, NotImplementedError: a layer that does not run on the meta device.
    """
    form = format_of(module, runtime)
    return form.predicted_peak_bytes(step_plan(module, spec, form))


def step_plan(module: nn.Module, spec: StepSpec, form: Format) -> MemoryPlan:
    """What a step of ``spec`` holds at once in a format; raises as :func:`step_growth_bytes`."""
    step = program_functions(module, spec)["train"]
    assert step.gradients is not None
    step.module.to("meta")
    specs = [item.spec for item in step.inputs]
    values = {
        s.name: torch.zeros(concrete_shape(s, spec.batch), dtype=getattr(torch, s.dtype), device="meta") for s in specs
    }
    held = _Held()
    with held:
        step.gradients(values)
    sizes = {s.name: s.byte_count(spec.batch) for s in specs}
    state = [s for s in specs if s.role in STATE_ROLES]
    gradients = {s.name: sizes[s.name] for s in specs if s.role == "parameter"}
    twice = 0 if form.writes_over else sum(sizes[s.name] for s in state if s.role != "frozen")
    buffers = sum(gradients.values()) if form.buffers_gradients else 0
    return MemoryPlan(
        state=sum(sizes[s.name] for s in state),
        written=twice + buffers,
        batch=sum(sizes[s.name] for s in specs if s.role not in STATE_ROLES),
        intermediate=max(held.peak, _end_bytes(spec, gradients, form)),
        peak_node="",
        nodes=round(_NODES_PER_OPERATION * held.operations + _NODES_PER_NORM * held.norms),
    )


def _end_bytes(spec: StepSpec, gradients: Mapping[str, int], form: Format) -> int:
    """What lies beside the state at a step's end: all gradients, those of a penalty, and what one tensor moves by.

    SGD moves large tensors in blocks where it writes over them.
    """
    factors = {name for pair in spec.frobenius for name in (pair.u, pair.v)}
    is_whole = form.updates_in_graph and (spec.optimizer.kind != "sgd" or not form.writes_over)
    moved = max(gradients.values()) if is_whole else 0
    return sum(gradients.values()) + sum(gradients.get(name, 0) for name in factors) + moved


class _Held(TorchDispatchMode):
    """Counts the bytes of values made inside the context that are still held, and the most there were at once."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """As of the mode in :mod:`export.draws`."""
        return False

    def __init__(self) -> None:
        super().__init__()
        self.peak = self.operations = self.norms = 0
        self._bytes = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = shaped(func, args, kwargs)
        if out is None:
            out = func(*args, **(kwargs or {}))
        given = {_storage(value) for value in tree_leaves((args, kwargs)) if isinstance(value, Tensor)}
        for value in tree_leaves(out):
            if isinstance(value, Tensor) and _storage(value) not in self._known | given:
                self._add(value)
        is_backward = func.overloadpacket in NORMS_BACKWARD
        self.operations += 1
        self.norms += is_backward or func.overloadpacket in NORMS
        # Graphs have a norm's backward pass in several operations, with one more value of its input's size.
        self.peak = max(self.peak, self._bytes + (args[1].nbytes if is_backward else 0))
        return out

    def _add(self, value: Tensor) -> None:
        storage = value.untyped_storage()
        key, size = _storage(value), storage.nbytes()
        self._known.add(key)
        self._bytes += size
        weakref.finalize(storage, self._drop, key, size)

    def _drop(self, key: int, size: int) -> None:
        self._known.discard(key)
        self._bytes -= size


def _storage(value: Tensor) -> int:
    return int(value.untyped_storage()._cdata)
