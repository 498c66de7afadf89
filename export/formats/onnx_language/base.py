"""The frozen base in a graph: each matrix is made float32 where it is read, and dropped after that one use.

A second reader of the same float32 matrix would keep it alive from the forward to the backward pass, so nothing made
here is given twice.
"""

# Dims: O outputs, I inputs, M positions of a whole batch.

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from edge.contracts.tensors import ROWS, TensorSpec
from export.formats.onnx_language.graph import MICROSOFT, StepGraph
from export.language.architecture import INT4_BLOCK
from export.language.base_weights import SCALE


class Base:
    """The mapped tensors of a graph.

    Args:
        specs: by name.
    """

    def __init__(self, graph: StepGraph, specs: Mapping[str, TensorSpec]) -> None:
        self._graph, self._specs = graph, specs

    def __contains__(self, name: str) -> bool:
        return name in self._specs

    def vector(self, name: str) -> str:
        """A tensor that is float32 already: a bias, the weight of a norm, a table of positions."""
        return self._graph.input(self._specs[name])

    def outputs(self, name: str) -> int:
        """Rows of matrix ``name``."""
        return int(self._specs[name].shape[0])

    def dense(self, name: str, rows: tuple[int, int] | None = None) -> str:
        """Matrix ``name`` [O, I] as float32, or its ``rows`` (first, one past the last) alone."""
        graph, held = self._graph, self._graph.input(self._specs[name])
        kind = graph.dtypes[held]
        if kind == "uint8":
            count = rows[1] - rows[0] if rows else self.outputs(name)
            index = graph.constant(np.arange(count, dtype=np.int64))
            if rows and rows[0]:
                index = graph.pair("Add", index, graph.constant(rows[0]), dtype="int64")
            return self._gathered_blocks(name, index)
        if rows:
            held = graph.rows(held, *rows)
        if kind == "float32":
            return held
        if kind == "float16":
            return graph.cast(held, "float32")
        scale = graph.input(self._specs[name + SCALE])
        if rows:
            scale = graph.rows(scale, *rows)
        return graph.one("DequantizeLinear", held, scale, shape=graph.shapes[held], axis=0)

    def rows_of(self, name: str, index: TensorSpec) -> str:
        """Rows of matrix ``name`` at input ``index`` [batch, T], float32 [M, I]; a device reads them from its file."""
        graph, held = self._graph, self._rows(name, index)
        kind = graph.dtypes[held]
        if kind == "float32":
            return held
        if kind == "float16":
            return graph.cast(held, "float32")
        scale = self._rows(name + SCALE, index)
        if kind == "uint8":
            size = graph.one("Shape", held, shape=(1,), dtype="int64", start=0, end=1)
            stop = graph.one("Squeeze", size, shape=(), dtype="int64")
            every = graph.one("Range", _scalar(0), stop, _scalar(1), shape=graph.shapes[held][:1], dtype="int64")
            return self._blocks(held, scale, every)
        return graph.mul(graph.cast(held, "float32"), scale)

    def _rows(self, name: str, index: TensorSpec) -> str:
        """Rows of a held tensor as they are held, [M, I], or of a vector [M, 1]."""
        spec, sizes = self._specs[name], index.shape
        self._graph.tables[name] = spec
        width = spec.shape[1:] or (1,)
        rows = TensorSpec(f"{name}{ROWS}{index.name}", (*sizes, *spec.shape[1:]), spec.dtype, "rows")
        return self._graph.reshape(self._graph.input(rows), [-1, *(int(size) for size in width)])

    def _gathered_blocks(self, name: str, index: str) -> str:
        graph = self._graph
        return self._blocks(graph.input(self._specs[name]), graph.input(self._specs[name + SCALE]), index)

    def _blocks(self, held: str, scale: str, index: str) -> str:
        """Rows ``index`` of int4 blocks as float32."""
        graph = self._graph
        return graph.one(
            "GatherBlockQuantized", held, index, scale,
            shape=(*graph.shapes[index], 2 * graph.shapes[held][1]),
            domain=MICROSOFT, bits=4, block_size=INT4_BLOCK, gather_axis=0, quantize_axis=1,
        )  # fmt: skip


def _scalar(value: int) -> np.ndarray:
    return np.array(value, np.int64)
