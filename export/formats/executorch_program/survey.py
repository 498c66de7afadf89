"""Every operation of a traced program that the ExecuTorch runtime cannot run, and the rewrites of the others.

The rewritten program is traced, not lowered: of the operations that are left to the runtime one of each kind is
lowered, all in one small program, to see which kernels they need.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.fx.traceback as fx_traceback
from torch import Tensor, fx, nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.node import map_aggregate, map_arg
from torch.utils._pytree import tree_map

from edge.contracts.errors import ExportRefused
from edge.runtimes.executorch.library import has_kernel
from export.capture import layer_of
from export.formats.executorch_program.lowering import compiled, kernel_names, no_kernel, quietly
from export.formats.survey import Survey, is_gradient
from export.passes.operators import NAMESPACE
from export.passes.rewriter import Rewriter
from export.passes.values import tensor_of


def survey_programs(programs: Mapping[str, fx.GraphModule], survey: Survey) -> None:
    """Note what the rewrites and the runtime's kernels make of the graphs in ``programs``."""
    samples: dict[str, list[fx.Node]] = {}
    for graph in programs.values():
        for node in _rewritten(graph, survey).graph.nodes:
            if node.op == "call_function" and isinstance(node.target, torch._ops.OpOverload):
                samples.setdefault(_kind(node), []).append(node)
    _survey_kernels(samples, survey)


_BATCH = 3
"""Examples per sample: statistics need more than one."""


class _Surveyor(Rewriter):
    """Goes on after a refusal with the operation as torch has it."""

    def __init__(self, graph: fx.GraphModule, survey: Survey) -> None:
        super().__init__(graph)
        self._survey = survey

    def run_node(self, n: fx.Node) -> Any:
        """One operation, noted where it is refused or rewritten."""
        with fx_traceback.set_current_meta(n):
            try:
                result = super().run_node(n)
            except ExportRefused as error:
                self._survey.refuse(error, is_gradient=is_gradient(n))
                target: Any = n.target
                args, kwargs = tree_map(tensor_of, self.fetch_args_kwargs_from_env(n))
                return target(*args, **kwargs)
        of_a_layer = n.op == "call_function" and (is_gradient(n) or "nn_module_stack" in n.meta)
        if of_a_layer and self.applied is not None:
            module = self.applied.__module__
            self._survey.rewrite(layer_of(n), module.rpartition(".")[2], str(sys.modules[module].__doc__))
        return result


class _Samples(nn.Module):
    """Runs operations, each on inputs of its own."""

    def __init__(self, nodes: Sequence[fx.Node]) -> None:
        super().__init__()
        self._nodes = list(nodes)

    def forward(self, inputs: list[list[Tensor]]) -> list[Any]:
        return [_call(node, values) for node, values in zip(self._nodes, inputs, strict=True)]


def _rewritten(graph: fx.GraphModule, survey: Survey) -> fx.GraphModule:
    surveyor = _Surveyor(graph, survey)
    inputs = [node.meta["val"] for node in graph.graph.nodes if node.op == "placeholder"]

    def run(*values: Tensor) -> Any:
        return surveyor.run(*values, enable_io_processing=False)

    with torch.no_grad(), fx_traceback.preserve_node_meta():
        traced = make_fx(run, tracing_mode="fake", _allow_non_fake_inputs=True)(*inputs)
    traced.graph.eliminate_dead_code()
    return traced


def _survey_kernels(samples: Mapping[str, Sequence[fx.Node]], survey: Survey) -> None:
    """Note the layers whose operations need a kernel that is not there; ``samples`` holds all of each kind."""
    left = {kind: nodes for kind, nodes in samples.items() if _can_sample(nodes[0]) and not _is_native(nodes[0])}
    if not _missing([nodes[0] for nodes in left.values()]):
        return
    for nodes in left.values():
        missing = _missing([nodes[0]])
        for node in nodes if missing else ():
            survey.refuse(no_kernel(missing[0], layer_of(node)), is_gradient=is_gradient(node))


def _missing(nodes: Sequence[fx.Node]) -> list[str]:
    """What the runtime lacks to run ``nodes``."""
    inputs: list[list[Tensor]] = []
    for node in nodes:
        read: list[Tensor] = []
        map_arg((node.args, node.kwargs), lambda n, read=read: read.append(_example(n.meta["val"])))
        inputs.append([value for value in read if isinstance(value, Tensor)])
    with quietly(), torch.no_grad():
        try:
            manager = compiled(torch.export.export(_Samples(nodes), (inputs,), strict=False))
        except Exception as error:  # the toolchain has no error of its own for an operation that it does not know
            return [f"{nodes[0].target} ({type(error).__name__})"]
    return [name for name in kernel_names(manager) if not has_kernel(name)]


def _kind(node: fx.Node) -> str:
    """Operations of one kind need the same kernels: they differ in sizes only."""

    def described(item: Any) -> Any:
        value = item.meta["val"] if isinstance(item, fx.Node) else item
        return f"{value.dtype}/{value.dim()}" if isinstance(value, Tensor) else type(value).__name__

    return f"{node.target} {map_aggregate((node.args, node.kwargs), described)}"


def _call(node: fx.Node, values: Sequence[Tensor]) -> Any:
    remaining = iter(values)

    def given(item: fx.Node) -> Any:
        value = _example(item.meta["val"])
        return next(remaining) if isinstance(value, Tensor) else value

    target: Any = node.target
    args, kwargs = map_arg((node.args, node.kwargs), given)
    return target(*args, **kwargs)


def _example(value: Any) -> Any:
    """A value like ``value`` at a small batch size."""
    if isinstance(value, Tensor):
        return torch.zeros([_size(size) for size in value.shape], dtype=value.dtype)
    return _size(value) if isinstance(value, torch.SymInt) else value


def _size(size: int | torch.SymInt) -> int:
    if isinstance(size, int):
        return size
    expression = size.node.expr
    return int(expression.subs(dict.fromkeys(expression.free_symbols, _BATCH)))


def _can_sample(node: fx.Node) -> bool:
    """Whether the node gives tensors and reads no number that only a run of the whole program has."""
    if any(isinstance(read.meta.get("val"), torch.SymFloat | torch.SymBool) for read in node.all_input_nodes):
        return False
    value = node.meta.get("val")
    return isinstance(value, Tensor) or (isinstance(value, list | tuple) and isinstance(value[0], Tensor))


def _is_native(node: fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target.namespace == NAMESPACE
