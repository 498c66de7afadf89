"""From a traced program to the bytes of an ExecuTorch program, for every batch size up to the step's own.

The program's inputs are the caller's buffers (state, batch), read where they lie; everything between is in one arena
that is planned at export for the largest batch.
"""

from __future__ import annotations

import copy
import dataclasses
import logging
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
import torch
from torch import Tensor, fx, nn

from edge.contracts.errors import ExportRefused
from edge.contracts.tensors import BATCH, TensorSpec, concrete_shape
from edge.runtimes.update_rule import RULE_ROLES
from export.alternatives import SUPPORTED, alternative
from export.capture import MODULE_ITSELF, Capture
from export.formats.executorch_program.arena import in_one_arena
from export.formats.executorch_program.edge_form import edge_manager
from export.passes.fusion import fuse
from export.passes.rewriter import Rewriter
from export.passes.sparse import SparseRewriter
from export.passes.values import SparseWeight

_SMALLEST = 3
"""Least batch size to trace at: 0 and 1 mean something of their own there, and 2 is the size of much else."""
_DTYPES = {"float32": torch.float32, "int64": torch.int64, "int32": torch.int32, "bool": torch.bool}


@dataclass(frozen=True)
class Lowered:
    """A program's bytes, and what its arena takes.

    Attributes:
        outputs: names in output order.
        planned_bytes: of the arena, at the largest batch.
        kernels: operators the program calls, each with the layer it serves ("" when it came from a rewrite).
    """

    data: bytes
    outputs: tuple[str, ...]
    planned_bytes: int
    kernels: dict[str, str]


class _Program(nn.Module):
    """The rewritten program as a module that :func:`torch.export.export` can trace; ``constants`` are inside of it."""

    def __init__(self, rewriter: Rewriter, specs: Sequence[TensorSpec], constants: Mapping[str, Tensor]) -> None:
        super().__init__()
        self._constants = {name: f"constant_{index}" for index, name in enumerate(constants)}
        for name, value in constants.items():
            self.register_buffer(self._constants[name], value)
        self._rewriter = [rewriter]  # in a list, so that the graph's own modules do not become this one's
        self._specs = tuple(specs)

    def forward(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        remaining = iter(inputs)
        values = [
            SparseWeight(spec.name, next(remaining), next(remaining), next(remaining), concrete_shape(spec))
            if spec.capacity
            else (getattr(self, self._constants[spec.name]) if spec.name in self._constants else next(remaining))
            for spec in self._specs
        ]
        return list(self._rewriter[0].run(*values, enable_io_processing=False))


def lower(
    program: Capture, outputs: Sequence[str], batch: int, constants: Mapping[str, Tensor] | None = None
) -> Lowered:
    """``program`` with only ``outputs`` (of its outputs and hidden values), for batches of 1 to ``batch``.

    Args:
        constants: values of inputs that are to be inside of the program; it is not given them when it runs.

    Raises:
        ExportRefused: naming the layer that has no kernel.
    """
    specs = [spec for spec in program.inputs if spec.role not in RULE_ROLES]
    graph = with_outputs(program, outputs)
    rewriter = SparseRewriter(graph, found) if (found := _sparse_gradients(graph, specs, outputs)) else Rewriter(graph)
    with quietly():
        exported = _exported(rewriter, specs, batch, constants or {})
        fuse(exported.graph_module.graph)
        exported.graph_module.recompile()
        try:
            manager = compiled(exported)
        except RuntimeError as error:
            unknown = re.search(r"Missing out variants: \{'([^']+)'", str(error))
            if unknown is None:
                raise
            raise no_kernel(unknown[1], rewriter.layers.get(unknown[1], "")) from error
    kernels = dict.fromkeys(kernel_names(manager), "")
    for name in kernels:
        base = name.partition(".")[0].removesuffix("_copy")
        kernels[name] = rewriter.layers.get(base, "")
    planned = sum(manager.executorch_program.execution_plan[0].non_const_buffer_sizes)
    return Lowered(bytes(manager.buffer), tuple(outputs), planned, kernels)


def free_batch(program: Capture, least: int) -> int:
    """The first batch size from ``least`` on for which a program can be lowered that takes smaller batches, too.

    Lowering traces at a size that no other dimension has; where all sizes up to the batch are taken by others, the
    program could come to run at that one alone.
    """
    taken = {size for spec in program.inputs for size in (*spec.shape, spec.capacity)}
    if any(size not in taken for size in range(_SMALLEST, least + 1)):
        return least
    return next(size for size in range(max(least, _SMALLEST), least + len(taken) + _SMALLEST) if size not in taken)


def compiled(exported: Any) -> Any:
    """An exported program, which is used up, for ExecuTorch: its inputs lie at the caller's, all else in one arena."""
    return edge_manager(exported).to_executorch(backend())


def backend() -> Any:
    """How ExecuTorch ends a compilation."""
    from executorch.exir import ExecutorchBackendConfig
    from executorch.exir.memory_planning import MemoryPlanningAlgorithmSuite, greedy
    from executorch.exir.passes import MemoryPlanningPass

    plans = MemoryPlanningAlgorithmSuite([in_one_arena, greedy])
    planning = MemoryPlanningPass(memory_planning_algo=plans, alloc_graph_input=False, alloc_graph_output=True)
    return ExecutorchBackendConfig(memory_planning_pass=planning)


def kernel_names(manager: Any) -> list[str]:
    """``namespace::name.overload`` of every kernel that a compiled program calls."""
    operators = manager.executorch_program.execution_plan[0].operators
    return [f"{op.name}.{op.overload}" if op.overload else op.name for op in operators]


def no_kernel(kernel: str, layer: str) -> ExportRefused:
    """The refusal of a layer whose step calls a kernel that is neither the runtime's nor ours; the caller raises it."""
    advice = alternative(kernel)
    return ExportRefused(
        layer or MODULE_ITSELF,
        f"its step needs {kernel}, for which executorch has no kernel",
        instead="another layer, or the runtime onnxruntime" if advice == SUPPORTED else advice,
    )


def with_outputs(program: Capture, outputs: Sequence[str]) -> fx.GraphModule:
    """A copy of the program's graph that gives ``outputs``, computes nothing else, and takes what is left to read."""
    graph = copy.deepcopy(program.graph)
    (node,) = [n for n in graph.graph.nodes if n.op == "output"]
    by_name = dict(zip((*program.outputs, *program.hidden), node.args[0], strict=True))
    node.args = ([by_name[name] for name in outputs],)
    graph.graph.eliminate_dead_code()
    for placeholder, spec in zip(list(graph.graph.find_nodes(op="placeholder")), program.inputs, strict=True):
        if spec.role in RULE_ROLES:
            graph.graph.erase_node(placeholder)
    graph.recompile()
    return graph


def with_capacities(program: Capture, capacities: Mapping[str, int]) -> Capture:
    """``program`` whose inputs say of which of them a device holds kept entries alone: weights, slots and masks."""
    inputs = (
        msgspec.structs.replace(spec, capacity=capacities.get(spec.name.partition("#")[0], 0))
        for spec in program.inputs
    )
    return dataclasses.replace(program, inputs=tuple(inputs))


def _sparse_gradients(
    graph: fx.GraphModule, inputs: Sequence[TensorSpec], outputs: Sequence[str]
) -> dict[str, fx.Node | None]:
    """By the name of every weight held as kept entries, the node that is its gradient; None where there is none."""
    (last,) = [n for n in graph.graph.nodes if n.op == "output"]
    by_name = dict(zip(outputs, last.args[0], strict=True))
    return {spec.name: by_name.get(f"grad:{spec.name}") for spec in inputs if spec.capacity}


def _exported(rewriter: Rewriter, specs: Sequence[TensorSpec], batch: int, constants: Mapping[str, Tensor]) -> Any:
    inputs = [spec for spec in specs if spec.name not in constants]
    dim = torch.export.Dim("batch", min=1, max=batch) if batch > 1 else None
    # An example of a size that no other dimension has, so that no comparison of sizes fixes the batch.
    taken = {size for spec in inputs for size in (*spec.shape, spec.capacity)}
    example = next((size for size in range(batch, _SMALLEST - 1, -1) if size not in taken), batch)
    examples: list[Tensor] = []
    shapes: list[dict[int, Any]] = []
    for spec in inputs:
        if spec.capacity:
            for size, dtype in (
                (spec.capacity, "float32"),
                (int(spec.shape[0]) + 1, "int32"),
                (spec.capacity, "int32"),
            ):
                examples.append(torch.zeros(size, dtype=_DTYPES[dtype]))
                shapes.append({})
            continue
        sizes = [example if size == BATCH else size for size in spec.shape]
        examples.append(torch.zeros(sizes, dtype=_DTYPES[spec.dtype]))
        shapes.append({i: dim for i, size in enumerate(spec.shape) if size == BATCH} if dim is not None else {})
    with torch.no_grad():
        try:
            return torch.export.export(
                _Program(rewriter, specs, constants),
                (examples,),
                dynamic_shapes=(shapes,) if dim is not None else None,
                strict=False,
                prefer_deferred_runtime_asserts_over_guards=True,
            )
        except ExportRefused:
            raise
        except Exception as error:
            cause: BaseException | None = error
            while cause is not None and not isinstance(cause, ExportRefused):
                cause = cause.__cause__ or cause.__context__
            if isinstance(cause, ExportRefused):
                raise cause from error
            raise


@contextmanager
def quietly() -> Iterator[None]:
    """Without the log lines and warnings of torch's and ExecuTorch's compilers."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
