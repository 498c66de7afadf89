"""ONNX nodes in the order they are asked for, with the shape of every value: nothing is merged, nothing is moved.

Which value is freed when decides how much memory a step takes, so the order is the format's product as much as the
numbers are, and the memory plan is exact because shapes and order are known here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from edge.contracts.tensors import BATCH, DTYPE_BYTES, DType, TensorSpec

OPSET = 20
IR_VERSION = 9
MICROSOFT = "com.microsoft"
"""Domain of ONNX Runtime's own operators."""
_ELEMENT = {
    "float32": TensorProto.FLOAT,
    "float16": TensorProto.FLOAT16,
    "int64": TensorProto.INT64,
    "int8": TensorProto.INT8,
    "uint8": TensorProto.UINT8,
    "bool": TensorProto.BOOL,
}
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Written:
    """A node as the memory plan reads it: its name, kind, what it reads and what it gives."""

    name: str
    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


class StepGraph:
    """A graph under construction.

    Args:
        batch: examples that shapes are stated for; the graph itself runs with any number.

    Attributes:
        scope: what names of nodes begin with.
        shapes, dtypes: of every value by name, at ``batch`` examples.
        tables: tensors that the graph reads rows of, which are its inputs in their stead.
    """

    def __init__(self, batch: int) -> None:
        self.batch = batch
        self.scope = ""
        self.shapes: dict[str, Shape] = {}
        self.dtypes: dict[str, DType] = {}
        self.inputs: dict[str, TensorSpec] = {}
        self.outputs: dict[str, TensorSpec] = {}
        self.tables: dict[str, TensorSpec] = {}
        self.constant_bytes = 0
        self._nodes: list[onnx.NodeProto] = []
        self._order: list[Written] = []
        self._constants: dict[tuple[str, Shape, bytes], str] = {}
        self._protos: list[onnx.TensorProto] = []
        self._count = 0

    def input(self, spec: TensorSpec) -> str:
        """The graph's input ``spec``, declared when it is first read."""
        if spec.name not in self.inputs:
            self.inputs[spec.name] = spec
            self.shapes[spec.name] = tuple(self.batch if size == BATCH else int(size) for size in spec.shape)
            self.dtypes[spec.name] = spec.dtype
        return spec.name

    def output(self, name: str, spec: TensorSpec) -> None:
        """Value ``name`` is the graph's output, the new value of ``spec``."""
        self.outputs[name] = spec

    def constant(self, value: np.ndarray | float | int | Sequence[int]) -> str:
        """Name of an initializer; whole numbers are int64 of one dimension, others float32."""
        if isinstance(value, float):
            array = np.array(value, np.float32)
        elif isinstance(value, np.ndarray):
            array = np.ascontiguousarray(value).reshape(value.shape)
        else:
            array = np.array([value] if isinstance(value, int) else list(value), np.int64)
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._constants:
            name = f"k{len(self._constants)}"
            self._constants[key] = name
            self._protos.append(numpy_helper.from_array(array, name))
            self.shapes[name], self.dtypes[name] = array.shape, array.dtype.name  # type: ignore[assignment]
            self.constant_bytes += array.nbytes
        return self._constants[key]

    def node(
        self,
        kind: str,
        *inputs: str | np.ndarray | float | int | Sequence[int],
        shapes: Sequence[Shape],
        dtype: DType = "float32",
        domain: str = "",
        name: str = "",
        **attributes: Any,
    ) -> tuple[str, ...]:
        """Every output of a new node, whose shapes are ``shapes``.

        Args:
            name: of its first output; numbered where empty.
        """
        read = [value if isinstance(value, str) else self.constant(value) for value in inputs]
        self._count += 1
        given = [f"{name or f'v{self._count}'}" + (f"_{i}" if i else "") for i in range(len(shapes))]
        label = f"{self.scope}/{kind}_{self._count}"
        self._nodes.append(helper.make_node(kind, read, given, name=label, domain=domain, **attributes))
        self._order.append(Written(label, kind, tuple(n for n in read if n), tuple(given)))
        for value, shape in zip(given, shapes, strict=True):
            self.shapes[value], self.dtypes[value] = tuple(shape), dtype
        return tuple(given)

    def one(self, kind: str, *inputs: Any, shape: Shape, **rest: Any) -> str:
        """The only output of a new node."""
        return self.node(kind, *inputs, shapes=(shape,), **rest)[0]

    # Operators whose shapes follow from those of their operands.

    def map(self, kind: str, x: str, *, dtype: DType | None = None, name: str = "", **attributes: Any) -> str:
        """One value for every entry of ``x``."""
        kept = dtype or self.dtypes[x]
        return self.one(kind, x, shape=self.shapes[x], dtype=kept, name=name, **attributes)

    def pair(self, kind: str, x: str | float, y: str | float, *, dtype: DType = "float32", name: str = "") -> str:
        """An operator of two operands that broadcast."""
        names = [value if isinstance(value, str) else self.constant(value) for value in (x, y)]
        shape = np.broadcast_shapes(*(self.shapes[n] for n in names))
        return self.one(kind, *names, shape=shape, dtype=dtype, name=name)

    def add(self, x: str | float, y: str | float, *, name: str = "") -> str:
        """x + y."""
        return self.pair("Add", x, y, name=name)

    def sub(self, x: str | float, y: str | float, *, name: str = "") -> str:
        """x - y."""
        return self.pair("Sub", x, y, name=name)

    def mul(self, x: str | float, y: str | float, *, name: str = "") -> str:
        """x y, entry by entry."""
        return self.pair("Mul", x, y, name=name)

    def div(self, x: str | float, y: str | float) -> str:
        """x / y, entry by entry."""
        return self.pair("Div", x, y)

    def reduce(self, kind: str, x: str, axis: int = -1) -> str:
        """``x`` with dimension ``axis`` reduced to size 1."""
        shape = list(self.shapes[x])
        shape[axis] = 1
        return self.one(kind, x, [axis], shape=tuple(shape), keepdims=1)

    def total(self, kind: str, x: str, *, name: str = "") -> str:
        """``x`` reduced to a scalar."""
        return self.one(kind, x, shape=(), keepdims=0, name=name)

    def gemm(self, a: str, b: str, c: str = "", *, flip_a: bool = False, flip_b: bool = False, name: str = "") -> str:
        """a b + c of matrices; ``flip_a`` and ``flip_b`` take one transposed."""
        shape = (self.shapes[a][1 if flip_a else 0], self.shapes[b][0 if flip_b else 1])
        operands = (a, b, c) if c else (a, b)
        return self.one("Gemm", *operands, shape=shape, name=name, transA=int(flip_a), transB=int(flip_b))

    def product(self, a: str, b: str, *, flip_a: bool = False, flip_b: bool = False, alpha: float = 1.0) -> str:
        """alpha a b of stacks of matrices, whose leading dimensions broadcast."""
        left, right = self.shapes[a], self.shapes[b]
        lead = np.broadcast_shapes(left[:-2], right[:-2])
        shape = (*lead, left[-1 if flip_a else -2], right[-2 if flip_b else -1])
        flags = {"transA": int(flip_a), "transB": int(flip_b), "alpha": alpha}
        return self.one("FusedMatMul", a, b, shape=shape, domain=MICROSOFT, **flags)

    def reshape(self, x: str, target: Sequence[int], *, name: str = "") -> str:
        """``x`` in the shape ``target``, whose only -1 is what follows the batch."""
        known = math.prod(size for size in target if size != -1)
        shape = tuple(math.prod(self.shapes[x]) // known if size == -1 else size for size in target)
        return self.one("Reshape", x, list(target), shape=shape, dtype=self.dtypes[x], name=name)

    def transpose(self, x: str, order: Sequence[int]) -> str:
        """``x`` with its dimensions in another order."""
        shape = tuple(self.shapes[x][i] for i in order)
        return self.one("Transpose", x, shape=shape, dtype=self.dtypes[x], perm=list(order))

    def split(self, x: str, sizes: Sequence[int], axis: int = -1) -> tuple[str, ...]:
        """Parts of ``x`` along ``axis``."""
        shapes = []
        for size in sizes:
            shape = list(self.shapes[x])
            shape[axis] = size
            shapes.append(tuple(shape))
        return self.node("Split", x, list(sizes), shapes=shapes, dtype=self.dtypes[x], axis=axis)

    def concat(self, parts: Sequence[str], axis: int = -1) -> str:
        """Parts one after the other along ``axis``."""
        shape = list(self.shapes[parts[0]])
        shape[axis] = sum(self.shapes[part][axis] for part in parts)
        return self.one("Concat", *parts, shape=tuple(shape), dtype=self.dtypes[parts[0]], axis=axis)

    def rows(self, x: str, start: int, stop: int) -> str:
        """Rows ``start`` to ``stop`` of ``x``."""
        shape = (stop - start, *self.shapes[x][1:])
        return self.one("Slice", x, [start], [stop], [0], shape=shape, dtype=self.dtypes[x])

    def cast(self, x: str, dtype: DType) -> str:
        """``x`` in another type."""
        return self.map("Cast", x, dtype=dtype, to=_ELEMENT[dtype])

    def byte_count(self, name: str) -> int:
        """Size of a value at the stated batch."""
        return math.prod(self.shapes[name]) * DTYPE_BYTES[self.dtypes[name]]

    @property
    def order(self) -> list[Written]:
        """The nodes that an output depends on, in their order."""
        return [node for node, is_read in zip(self._order, self._read(), strict=True) if is_read]

    def model(self, name: str) -> onnx.ModelProto:
        """The graph so far as a model; what no output depends on is left out."""
        graph = helper.make_graph(
            [node for node, is_read in zip(self._nodes, self._read(), strict=True) if is_read],
            name,
            [_value(spec.name, spec) for spec in self.inputs.values()],
            [_value(output, spec) for output, spec in self.outputs.items()],
            self._protos,
        )
        opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(MICROSOFT, 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="apportion")

    def _read(self) -> list[bool]:
        wanted, found = set(self.outputs), []
        for node in reversed(self._order):
            is_read = any(name in wanted for name in node.outputs)
            if is_read:
                wanted |= set(node.inputs)
            found.append(is_read)
        return found[::-1]


def _value(name: str, spec: TensorSpec) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, _ELEMENT[spec.dtype], list(spec.shape))
