"""Multiply-accumulates and parameters of a cut, counted on the traced evaluation program."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import fx

from export.capture import Capture


def forward_macs(evaluation: Capture) -> int:
    """Multiply-accumulates of one forward pass, per sample.

    Convolutions and matrix products as such, 2 per batch-norm element, 1 per ReLU element, the input elements of
    average pooling (the ptflops convention); all other operations count nothing.
    """
    nodes = list(evaluation.graph.graph.nodes)
    places = [node for node in nodes if node.op == "placeholder"]
    batch = next(_sizes(n)[0] for n, s in zip(places, evaluation.inputs, strict=True) if s.role == "input")
    return sum(_macs(node) for node in nodes if node.op == "call_function") // batch


def _macs(node: fx.Node) -> int:
    name = str(node.target).removeprefix("aten.").partition(".")[0]
    if name == "convolution":
        x, weight, transposed = node.args[0], node.args[1], node.args[6]
        positions = _elements(x) if transposed else _elements(node)
        channels = _sizes(weight)
        # Every output (transposed: input) element meets in_channels/groups (out_channels/groups) times kernel weights.
        return positions * math.prod(channels[1:])
    if name in ("mm", "bmm", "addmm"):
        left = node.args[1] if name == "addmm" else node.args[0]
        return _elements(node) * _sizes(left)[-1]
    if "batch_norm" in name:
        return 2 * _elements(node.args[0])
    if name == "relu":
        return _elements(node)
    if name in ("avg_pool2d", "_adaptive_avg_pool2d"):
        return _elements(node.args[0])
    if name == "mean" and len(_sizes(node.args[0])) > 2:  # global pooling
        return _elements(node.args[0])
    if str(node.target) in ("apportion.lstm_layer.default", "apportion.gru_layer.default"):
        x, w_ih, w_hh = (_sizes(a) for a in node.args[:3])
        return x[0] * x[1] * (math.prod(w_ih) + math.prod(w_hh))
    if str(node.target) == "apportion.lstm_factor_layer.default":
        x, *weights = (_sizes(a) for a in node.args[:4])
        return x[0] * x[1] * sum(map(math.prod, weights))
    return 0


def _sizes(node: Any) -> list[int]:
    return [int(s.node.hint) if isinstance(s, torch.SymInt) else int(s) for s in node.meta["val"].shape]


def _elements(node: Any) -> int:
    value = node.meta["val"]
    shape = value[0].shape if isinstance(value, list | tuple) else value.shape
    return math.prod(int(s.node.hint) if isinstance(s, torch.SymInt) else int(s) for s in shape)
