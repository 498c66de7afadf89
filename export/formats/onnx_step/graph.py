"""ONNX nodes and constants under construction; an operation asked for twice with equal inputs is made once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

OPSET = 20
IR_VERSION = 9
ABSENT = ""
"""An optional ONNX input that is left out."""

Constant = np.ndarray | int | float | bool | Sequence[int]


class GraphBuilder:
    """Collects nodes in the order they are asked for; value names are ``v1, v2, ...`` and constants ``k0, k1, ...``.

    Attributes:
        scope: what names of nodes begin with.
        is_again: whether the nodes asked for compute something for the second time on purpose: no equal earlier node
            that was made for the first time is given in their place.
    """

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, onnx.TensorProto] = {}
        self.scope = ""
        self.is_again = False
        self._made: dict[tuple[Any, ...], tuple[str, ...]] = {}
        self._constant_names: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        self._count = 0

    def node(self, kind: str, *inputs: str | Constant, **attributes: Any) -> str:
        """The single output of a new (or equal earlier) node; numbers and arrays among the inputs become constants."""
        return self.node_with_outputs(kind, 1, *inputs, **attributes)[0]

    def node_with_outputs(self, kind: str, outputs: int, *inputs: str | Constant, **attributes: Any) -> tuple[str, ...]:
        """All outputs of a new (or equal earlier) node."""
        names = [i if isinstance(i, str) else self.constant(i) for i in inputs]
        key = (kind, outputs, self.is_again, *names, repr(sorted(attributes.items(), key=lambda item: item[0])))
        if key in self._made:
            return self._made[key]
        self._count += 1
        results = tuple(f"v{self._count}" + (f"_{i}" if i else "") for i in range(outputs))
        self.nodes.append(
            helper.make_node(kind, names, list(results), name=f"{self.scope}/{kind}_{self._count}", **attributes)
        )
        self._made[key] = results
        return results

    def constant(self, value: Constant) -> str:
        """Name of an initializer; Python integers and lists of them are int64, other numbers float32."""
        array = value if isinstance(value, np.ndarray) else _as_array(value)
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._constant_names:
            name = f"k{len(self._constant_names)}"
            self._constant_names[key] = name
            self.constants[name] = numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name)
        return self._constant_names[key]


def _as_array(value: Constant) -> np.ndarray:
    if isinstance(value, bool):
        return np.array(value, np.bool_)
    if isinstance(value, float):
        return np.array(value, np.float32)
    if isinstance(value, int):
        return np.array([value], np.int64)
    return np.array(list(value), np.int64)
