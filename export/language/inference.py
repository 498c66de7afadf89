"""A language model for writing: one ONNX graph that takes new symbols and what was kept of those before (KV cache).

Inputs and outputs have the names that tools of others read: ``input_ids``, ``past_key_values.N.key`` and ``.value``,
``logits``, ``present.N.key`` and ``.value``. All sequences of a batch are of one length: there is no mask of padding.
Weights lie in one file beside the graph, float32 or int8 by output channel, each written once and in its turn.
"""

# Dims: B batch, S new symbols, P symbols before, T = P + S, D hidden, N query heads, K key heads, G = N / K, H head
# size, V vocabulary.

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from export.language.architecture import Architecture
from export.language.base_weights import SCALE, held, matrices
from export.language.causal_model import meta_model

OPSET, IR_VERSION = 20, 9
MINIMUM_RUNTIME_VERSION = "1.20"
WEIGHTS = "model.onnx.data"
"""Name of the file with the weights, beside the graph."""

Precision = Literal["float32", "int8"]

_ALIGNMENT = 4096
"""Of a tensor in its file, so that it can be mapped."""
_ROWS = 8192
"""Of a matrix that are rounded at a time."""
_HEAD_ROWS = 4096
"""Of an int8 head that are float32 at a time."""
_ELEMENT = {"float32": TensorProto.FLOAT, "int8": TensorProto.INT8}


def write_inference(
    folder: Path, architecture: Architecture, values: Iterable[tuple[str, np.ndarray]], precision: Precision
) -> None:
    """Write ``model.onnx`` and its weights into ``folder``.

    Args:
        values: (name, float32 array) of every tensor of the module, in any order; one is in memory at a time.
        precision: of the matrices; norms, biases and tables of positions are float32.

    Raises:
        ValueError: values that are not the module's.
    """
    graph = _Graph(architecture, precision)
    module = meta_model(architecture)
    shapes, quantised = {n: tuple(v.shape) for n, v in module.named_parameters()}, matrices(module)
    with (folder / WEIGHTS).open("wb") as file:
        for name, value in values:
            if shapes.pop(name, None) != value.shape:
                raise ValueError(f"'{name}' {value.shape} is no tensor of the model, or was given twice")
            if architecture.norm_offset and value.ndim == 1 and name.endswith("norm.weight"):
                value = np.float32(1.0) + value
            dtype: Precision = precision if name in quantised else "float32"
            pieces = [held(name, value[i : i + _ROWS], dtype) for i in range(0, len(value), _ROWS)]
            _write(file, graph, name, value.shape, dtype, (piece[name] for piece in pieces))
            if steps := [piece[name + SCALE] for piece in pieces if name + SCALE in piece]:
                _write(file, graph, name + SCALE, value.shape[:1], "float32", steps)
    if shapes:
        raise ValueError(f"no value of '{next(iter(shapes))}' was given")
    onnx.save_model(graph.model(), str(folder / "model.onnx"))


def _write(
    file: BinaryIO, graph: _Graph, name: str, shape: tuple[int, ...], dtype: Precision, parts: Iterable[np.ndarray]
) -> None:
    """Tensor ``name`` from its rows in ``parts``, at an aligned place."""
    file.write(b"\0" * (-file.tell() % _ALIGNMENT))
    graph.weight(name, shape, dtype, file.tell())
    for part in parts:
        file.write(np.ascontiguousarray(part).data)


class _Graph:
    """Nodes in the order of the forward pass."""

    def __init__(self, shape: Architecture, precision: Precision) -> None:
        self.shape, self.precision = shape, precision
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, onnx.TensorProto] = {}
        self._constants: dict[bytes, onnx.TensorProto] = {}
        self._masks: dict[int, str] = {}
        self._turns: dict[float, tuple[str, str]] = {}

    def weight(self, name: str, shape: tuple[int, ...], dtype: Precision, offset: int) -> None:
        """Declare tensor ``name``, whose bytes are at ``offset`` of the weights' file."""
        tensor = TensorProto(name=name, dims=shape, data_type=_ELEMENT[dtype])
        tensor.data_location = TensorProto.EXTERNAL
        length = math.prod(shape) * np.dtype(dtype).itemsize
        for key, entry in ("location", WEIGHTS), ("offset", offset), ("length", length):
            tensor.external_data.add(key=key, value=str(entry))
        self.weights[name] = tensor

    def constant(self, value: Any, dtype: type[np.generic] = np.int64) -> str:
        array = np.asarray(value, dtype)
        key = f"{array.dtype}{array.shape}".encode() + array.tobytes()
        if key not in self._constants:
            self._constants[key] = numpy_helper.from_array(array, f"c{len(self._constants)}")
        return str(self._constants[key].name)

    def node(self, kind: str, *inputs: str, name: str = "", outputs: int = 1, **attributes: Any) -> str:
        """The first output of a new node; further ones have its name with ``_1``, ``_2``."""
        first = name or f"{kind}_{len(self.nodes)}"
        names = [first, *(f"{first}_{i}" for i in range(1, outputs))]
        self.nodes.append(helper.make_node(kind, list(inputs), names, name=f"n{len(self.nodes)}", **attributes))
        return first

    def model(self) -> onnx.ModelProto:
        """The whole model."""
        shape = self.shape
        lengths = self.node("Shape", "past_key_values.0.key")
        self.before = self.node("Gather", lengths, self.constant(2))
        count = self.node("Gather", self.node("Shape", "input_ids"), self.constant(1))
        self.all = self.node("Add", self.before, count)
        self.positions = self.node("Range", self.before, self.all, self.constant(1))
        x = self._embedded()
        for block in range(shape.layers):
            x = self._block(x, block)
        self._head(self._norm(x, "norm"))
        cache = [[f"{side}.{n}.{kind}" for n in range(shape.layers) for kind in ("key", "value")]
                 for side in ("past_key_values", "present")]  # fmt: skip
        inputs = [helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "sequence"])]
        inputs += [_value(name, ["batch", shape.kv_heads, "past", shape.head_size]) for name in cache[0]]
        outputs = [_value("logits", ["batch", "sequence", shape.vocabulary])]
        outputs += [_value(name, ["batch", shape.kv_heads, "total", shape.head_size]) for name in cache[1]]
        initializers = [*self.weights.values(), *self._constants.values()]
        made = helper.make_graph(self.nodes, shape.family, inputs, outputs, initializers)
        opsets = [helper.make_opsetid("", OPSET)]
        return helper.make_model(made, opset_imports=opsets, ir_version=IR_VERSION, producer_name="apportion")

    def _embedded(self) -> str:
        shape = self.shape
        x = self.node("Gather", "embedding.weight", "input_ids")
        if (scale := "embedding.weight" + SCALE) in self.weights:
            steps = self.node("Unsqueeze", self.node("Gather", scale, "input_ids"), self.constant([-1]))
            x = self.node("Mul", self.node("Cast", x, to=TensorProto.FLOAT), steps)
        if shape.embedding_scale != 1.0:
            x = self.node("Mul", x, self.constant(shape.embedding_scale, np.float32))
        if shape.positions == "learned":
            x = self.node("Add", x, self.node("Gather", "positions.weight", self.positions))
        return x

    def _block(self, x: str, block: int) -> str:
        path = f"blocks.{block}"
        for part, added in ("attention", self._attention), ("feed_forward", self._feed_forward):
            y = added(self._norm(x, f"{path}.{part}_norm"), block)
            x = self.node("Add", x, self._norm(y, f"{path}.{part}_post_norm") if self.shape.post_norms else y)
        return x

    def _norm(self, x: str, path: str) -> str:
        shape, weight = self.shape, f"{path}.weight"
        if shape.norm == "layer":
            return self.node(
                "LayerNormalization", x, weight, f"{path}.bias", axis=-1, epsilon=shape.norm_epsilon, stash_type=1
            )
        squares = self.node("ReduceMean", self.node("Mul", x, x), self.constant([-1]), keepdims=1)
        deviation = self.node("Sqrt", self.node("Add", squares, self.constant(shape.norm_epsilon, np.float32)))
        return self.node("Mul", self.node("Div", x, deviation), weight)

    def _linear(self, x: str, path: str, inputs: int) -> str:
        """[B, S, inputs] -> [B S, outputs]."""
        flat = self.node("Reshape", x, self.constant([-1, inputs]))
        bias = (f"{path}.bias",) if f"{path}.bias" in self.weights else ()
        return self.node("Gemm", flat, self._dense(f"{path}.weight"), *bias, transB=1)

    def _dense(self, name: str) -> str:
        if name + SCALE not in self.weights:
            return name
        return self.node("DequantizeLinear", name, name + SCALE, axis=0)

    def _attention(self, x: str, block: int) -> str:
        shape, path = self.shape, f"blocks.{block}.attention"
        size = shape.head_size
        if shape.fused_attention:
            together = self._linear(x, f"{path}.qkv", shape.hidden)
            first = self.node("Split", together, outputs=3, axis=-1, num_outputs=3)
            parts = [first, f"{first}_1", f"{first}_2"]
        else:
            parts = [self._linear(x, f"{path}.{name}", shape.hidden) for name in ("query", "key", "value")]
        # [B S, n H] -> [B, S, n, H]; B and S are those of x.
        sizes = self.node("Shape", "input_ids")
        q, k, v = (
            self.node("Reshape", part, self.node("Concat", sizes, self.constant([heads, size]), axis=0))
            for part, heads in zip(parts, (shape.heads, shape.kv_heads, shape.kv_heads), strict=True)
        )
        if shape.query_norm:
            q, k = self._norm(q, f"{path}.query_norm"), self._norm(k, f"{path}.key_norm")
        q, k, v = (self.node("Transpose", part, perm=[0, 2, 1, 3]) for part in (q, k, v))
        if shape.positions == "rotary":
            q, k = (self._rotated(part, shape.theta(block)) for part in (q, k))
        k = self.node("Concat", f"past_key_values.{block}.key", k, name=f"present.{block}.key", axis=2)
        v = self.node("Concat", f"past_key_values.{block}.value", v, name=f"present.{block}.value", axis=2)
        # A group of query heads reads one key head: [B, N, S, H] as [B, K, G S, H].
        of_group = self.constant([0, shape.kv_heads, -1, size])
        q = self.node("Reshape", self.node("Mul", q, self.constant(shape.scale, np.float32)), of_group)
        scores = self.node("MatMul", q, self.node("Transpose", k, perm=[0, 1, 3, 2]))
        whole = self.node("Concat", self.constant([0, shape.heads, -1]), self._one(self.all), axis=0)
        scores = self.node("Add", self.node("Reshape", scores, whole), self._mask(shape.window(block)))
        shares = self.node("Softmax", scores, axis=-1)
        grouped = self.node("Concat", self.constant([0, shape.kv_heads, -1]), self._one(self.all), axis=0)
        out = self.node("MatMul", self.node("Reshape", shares, grouped), v)
        out = self.node("Reshape", out, self.constant([0, shape.heads, -1, size]))
        return self._back(
            self._linear(self.node("Transpose", out, perm=[0, 2, 1, 3]), f"{path}.output", shape.heads * size)
        )

    def _back(self, x: str) -> str:
        """[B S, D] -> [B, S, D]."""
        sizes = self.node("Concat", self.node("Shape", "input_ids"), self.constant([-1]), axis=0)
        return self.node("Reshape", x, sizes)

    def _one(self, scalar: str) -> str:
        return self.node("Unsqueeze", scalar, self.constant([0]))

    def _rotated(self, x: str, theta: float) -> str:
        """[B, n, S, H], each head turned by the angles of its position, both halves by the same."""
        if theta not in self._turns:
            half = self.shape.head_size // 2
            frequencies = theta ** -(np.arange(half, dtype=np.float64) / half)
            places = self.node("Cast", self.positions, to=TensorProto.DOUBLE)
            angles = self.node("Mul", self.node("Unsqueeze", places, self.constant([1])),
                               self.constant(frequencies[None], np.float64))  # fmt: skip
            both = self.node("Concat", angles, angles, axis=-1)
            cos, sin = (self.node("Cast", self.node(kind, both), to=TensorProto.FLOAT) for kind in ("Cos", "Sin"))
            self._turns[theta] = cos, sin
        cos, sin = self._turns[theta]
        first = self.node("Split", x, outputs=2, axis=-1, num_outputs=2)
        turned = self.node("Concat", self.node("Neg", f"{first}_1"), first, axis=-1)
        return self.node("Add", self.node("Mul", x, cos), self.node("Mul", turned, sin))

    def _mask(self, window: int) -> str:
        """[S, T]: 0 where a position sees another, minus infinity elsewhere."""
        if window not in self._masks:
            rows = self.node("Unsqueeze", self.positions, self.constant([1]))
            columns = self.node("Unsqueeze", self.node("Range", self.constant(0), self.all, self.constant(1)),
                                self.constant([0]))  # fmt: skip
            seen = self.node("LessOrEqual", columns, rows)
            if window:
                near = self.node("Greater", columns, self.node("Sub", rows, self.constant(window)))
                seen = self.node("And", seen, near)
            zero, never = self.constant(0.0, np.float32), self.constant(-np.inf, np.float32)
            self._masks[window] = self.node("Where", seen, zero, never)
        return self._masks[window]

    def _feed_forward(self, x: str, block: int) -> str:
        shape, path = self.shape, f"blocks.{block}.feed_forward"
        up = self._linear(x, f"{path}.up", shape.hidden)
        inner = self._linear(x, f"{path}.gate", shape.hidden) if shape.gated else up
        if shape.activation == "silu":
            inner = self.node("Mul", inner, self.node("Sigmoid", inner))
        else:
            inner = self.node("Gelu", inner, approximate="tanh")
        inner = self.node("Mul", inner, up) if shape.gated else inner
        return self._back(self._linear(inner, f"{path}.down", shape.feed_forward))

    def _head(self, x: str) -> None:
        shape = self.shape
        name = "embedding.weight" if shape.tied else "head.weight"
        flat = self.node("Reshape", x, self.constant([-1, shape.hidden]))
        if name + SCALE not in self.weights:
            found = self.node("Gemm", flat, name, transB=1)
        else:
            parts = []
            for start in range(0, shape.vocabulary, _HEAD_ROWS):
                rows = (self.constant([start]), self.constant([min(start + _HEAD_ROWS, shape.vocabulary)]))
                table, steps = (self.node("Slice", part, *rows, self.constant([0])) for part in (name, name + SCALE))
                parts.append(self.node("Gemm", flat, self.node("DequantizeLinear", table, steps, axis=0), transB=1))
            found = self.node("Concat", *parts, axis=-1) if len(parts) > 1 else parts[0]
        sizes = self.node("Concat", self.node("Shape", "input_ids"), self.constant([shape.vocabulary]), axis=0)
        self.node("Reshape", found, sizes, name="logits")


def _value(name: str, shape: list[int | str]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
