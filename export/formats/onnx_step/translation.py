"""From a traced program to an ONNX graph in standard operators; the operators themselves are in ``operators/``."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper
from torch import fx

from edge.contracts.errors import ExportRefused
from edge.contracts.tensors import BATCH
from export.alternatives import alternative
from export.capture import Capture, layer_of
from export.formats.onnx_step.constants import Constants, without_repeats
from export.formats.onnx_step.dimensions import Dimensions
from export.formats.onnx_step.graph import ABSENT, IR_VERSION, OPSET, GraphBuilder
from export.formats.onnx_step.ordering import finished_nodes
from export.forms.kept_activations import is_kept
from export.forms.recomputation import RECOMPUTED

ONNX_TYPES = {
    torch.float32: TensorProto.FLOAT,
    torch.int64: TensorProto.INT64,
    torch.int32: TensorProto.INT32,
    torch.bool: TensorProto.BOOL,
}
NUMPY_TYPES = {torch.float32: np.float32, torch.int64: np.int64, torch.int32: np.int32, torch.bool: np.bool_}
MAX_CONSTANT_BYTES = 1 << 20
"""Constants of the architecture (masks, position tables) are part of the graph up to this size each; weights never."""
LARGE_BYTES = 1 << 20
"""Graph inputs from this size on are worth an order of nodes that saves memory."""

Values = str | tuple[str, ...]
Operator = Callable[..., Values]
OPERATORS: dict[str, Operator] = {}


def translates_into(table: dict[str, Operator]) -> Callable[..., Callable[[Operator], Operator]]:
    """A decorator that puts functions for ATen operators into ``table``: by name (``relu``), or ``max.dim``."""

    def translates(*targets: str) -> Callable[[Operator], Operator]:
        def register(function: Operator) -> Operator:
            for target in targets:
                if target in table:
                    raise ValueError(f"operator {target} is translated twice; remove one of the two")
                table[target] = function
            return function

        return register

    return translates


translates = translates_into(OPERATORS)


class Translation:
    """One program on its way to ONNX.

    Attributes:
        make: nodes and constants so far.
        dims: sizes of tensors.
        batch_parts: as :func:`export.formats.onnx_step.operator_table.translate` says.
        operators: the table in use; formats with operators of their own lay theirs over it.
    """

    operators: Mapping[str, Operator] = OPERATORS

    def __init__(self, program: Capture, *, batch_parts: int = 1) -> None:
        self.program = program
        self.batch_parts = batch_parts
        self.make = GraphBuilder()
        self._constants = Constants(program.graph)
        self._values: dict[fx.Node, Values] = {}
        placeholders = [n for n in program.graph.graph.nodes if n.op == "placeholder"]
        self._placeholders = dict(zip(placeholders, program.inputs, strict=True))
        batched = [(n, s) for n, s in self._placeholders.items() if BATCH in s.shape]
        source, symbol = ("", None)
        if batched:
            node, spec = batched[0]
            size = node.meta["val"].shape[0]
            source, symbol = spec.name, size.node.expr if isinstance(size, torch.SymInt) else None
        self.dims = Dimensions(self.make, source, symbol)

    # What operators ask for.

    def value(self, item: Any, dtype: torch.dtype | None = None) -> str:
        """Name of the value of a graph node or Python number, cast to ``dtype`` where it has another one."""
        if isinstance(item, fx.Node):
            known = item.meta["val"]
            if isinstance(known, torch.SymInt | int):
                wanted = dtype or torch.int64
                return self.dims.scalar(self.dims.size(item), ONNX_TYPES[wanted], NUMPY_TYPES[wanted])
            name = self._values[item]
            if not isinstance(name, str):
                raise TypeError(f"{item} gives {len(name)} values where one is needed")
            return self.make.node("Cast", name, to=ONNX_TYPES[dtype]) if dtype and known.dtype != dtype else name
        if item is None:
            return ABSENT
        return self.make.constant(np.array(item, NUMPY_TYPES[dtype or torch.float32]))

    def replace(self, node: fx.Node, value: str) -> None:
        """Let what comes from here on read ``value`` in place of what ``node`` gave."""
        self._values[node] = value

    def scalar(self, number: float) -> str:
        """A float32 rank-0 constant."""
        return self.make.constant(np.array(number, np.float32))

    def tensor(self, node: fx.Node) -> torch.Tensor:
        """The fake tensor of a node: its shape and dtype."""
        return node.meta["val"]

    def shape(self, node: fx.Node) -> list[Any]:
        """Sizes of a node, numbers where they are."""
        return self.dims.sizes(self.tensor(node).shape)

    def fixed_shape(self, node: fx.Node, start: int = 1) -> list[int]:
        """Sizes from dim ``start`` on, all of which have to be numbers."""
        return [self.dims.fixed(s, layer=layer_of(node)) for s in self.tensor(node).shape[start:]]

    def known(self, node: fx.Node) -> torch.Tensor | None:
        """The value of a node that depends on no input and no batch size; None for others and for very large ones."""
        value = self._constants.value(node)
        return value if isinstance(value, torch.Tensor) else None

    def refuse(self, node: fx.Node, reason: str, instead: str) -> ExportRefused:
        """The refusal of ``node``, naming its layer; the caller raises it."""
        return ExportRefused(layer_of(node), reason, instead=instead)

    # The translation.

    def model(self) -> onnx.ModelProto:
        """The program as an ONNX model; graph inputs and outputs have the names of tensors.

        Raises:
            ExportRefused: naming the layer of the first operation without a translation.
        """
        for node in self.program.graph.graph.nodes:
            self._visit(node)
        output = next(n for n in self.program.graph.graph.nodes if n.op == "output")
        names = [*self.program.outputs, *self.program.hidden]
        sources = dict(zip(names, (self.value(n) for n in output.args[0]), strict=True))
        results = dict(zip(names, output.args[0], strict=True))
        inputs = [
            helper.make_tensor_value_info(s.name, ONNX_TYPES[n.meta["val"].dtype], list(s.shape))
            for n, s in self._placeholders.items()
        ]
        large = frozenset(s.name for s in self.program.inputs if s.byte_count() >= LARGE_BYTES)
        nodes = finished_nodes(self.make.nodes, sources, self.program.outputs, large)
        outputs = [self._output_info(n, results[n]) for n in self.program.outputs]
        used = {name for node in nodes for name in node.input}
        constants = [c for name, c in self.make.constants.items() if name in used]
        graph = helper.make_graph(nodes, "step", inputs, outputs, constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)

    def _output_info(self, name: str, node: fx.Node) -> onnx.ValueInfoProto:
        tensor = self.tensor(node)
        return helper.make_tensor_value_info(name, ONNX_TYPES[tensor.dtype], self.dims.onnx_shape(tensor.shape))

    def _visit(self, node: fx.Node) -> None:
        if node.op == "placeholder":
            self._values[node] = self._placeholders[node].name
        elif node.op == "get_attr":
            self._values[node] = self._constant(node)
        elif node.op == "call_function":
            self._call(node)

    def _call(self, node: fx.Node) -> None:
        target: Any = node.target
        if target is operator.getitem:
            self._values[node] = self._values[node.args[0]][node.args[1]]
            return
        if isinstance(node.meta.get("val"), torch.SymInt | torch.SymBool | int | bool):
            return  # arithmetic on sizes; the expression is in the meta value
        self.make.scope = f"{_marked_layer(node)}/{node.name}"
        self.make.is_again = RECOMPUTED in node.meta
        try:
            self._values[node] = self._translated(node)
        except ExportRefused:
            folded = self._folded(node)
            if folded is None:
                raise
            self._values[node] = folded

    def _translated(self, node: fx.Node) -> Values:
        target: Any = node.target
        full = str(target).removeprefix("aten.").removeprefix("prims.")
        function = self.operators.get(full) or self.operators.get(full.rpartition(".")[0])
        if torch.Tag.nondeterministic_seeded in getattr(target, "tags", ()):
            raise self.refuse(node, f"operation {full} draws random numbers in every step", "p=0, or no noise")
        if function is None:
            raise self.refuse(node, f"operation {full} has no translation", alternative(full))
        for item in _tensors(node.meta.get("val")):
            if item.dtype not in ONNX_TYPES and not is_kept(node):
                raise self.refuse(node, f"operation {full} computes in {item.dtype}", "float32")
        return function(self, node, *node.args, **node.kwargs)

    def _folded(self, node: fx.Node) -> Values | None:
        """What a refused operation gives, where that is a constant of the architecture: the step need not compute it.

        An operation with a translation is left in the graph even so: its operands may be far smaller than its result.
        """
        value = self._constants.value(node)
        if value is None:
            return None
        parts = [without_repeats(v) for v in ([value] if isinstance(value, torch.Tensor) else value)]
        if any(part.numel() * part.element_size() > MAX_CONSTANT_BYTES for part in parts):
            return None
        names = []
        for part, whole in zip(parts, _tensors(node.meta["val"]), strict=True):
            name = self.make.constant(part.numpy())
            is_whole = part.shape == whole.shape
            names.append(name if is_whole else self.make.node("Expand", name, list(whole.shape)))
        return names[0] if isinstance(value, torch.Tensor) else tuple(names)

    def _constant(self, node: fx.Node) -> str:
        value = getattr(self.program.graph, str(node.target)).detach()
        node.meta.setdefault("val", value)
        if value.numel() * value.element_size() > MAX_CONSTANT_BYTES:
            raise self.refuse(
                node,
                f"it holds a constant of shape {tuple(value.shape)}, over {MAX_CONSTANT_BYTES} bytes",
                "a parameter (frozen if need be)",
            )
        if value.dtype == torch.float64 and value.dim() == 0:
            value = value.float()
        return self.make.constant(value.numpy())


def _tensors(value: Any) -> Sequence[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [v for v in value if isinstance(v, torch.Tensor)] if isinstance(value, list | tuple) else []


def _marked_layer(node: fx.Node) -> str:
    stack = node.meta.get("nn_module_stack")
    return str(next(reversed(stack))) if stack else ""


def product(sizes: Sequence[int]) -> int:
    """Product of sizes; 1 for none."""
    return math.prod(sizes)
