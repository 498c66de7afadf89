"""Multiply-accumulates of a cut, counted on its traced programs: of a forward pass, and of a whole training step."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from edge.runtimes.micro_batches import ACCUMULATE
from export.capture import Capture
from export.training_step import StepSpec
from profiles.step_work import StepWork

_LANES = 16
"""Channels that kernels of both runtimes compute at once on processors with 256 and 512 bit registers."""
_PRODUCTS = ("mm", "bmm", "addmm")
_RECURRENT = "apportion."


@dataclass(frozen=True)
class ConvolutionShape:
    """What a plain convolution computes, forward or backward.

    Attributes:
        examples: of one run of its program.
        weight: filters, channels / groups, height and width of the kernel.
        output: height and width of what it gives.
    """

    examples: int
    weight: tuple[int, ...]
    output: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int


InTiles = Callable[[ConvolutionShape], bool]
"""Whether a runtime's kernels do a convolution in tiles, with 16 products for 36."""


def forward_macs(evaluation: Capture) -> int:
    """Multiply-accumulates of one forward pass, per sample.

    Convolutions and matrix products as such, 2 per batch-norm element, 1 per ReLU element, the input elements of
    average pooling (the ptflops convention); all other operations count nothing.
    """
    nodes = list(evaluation.graph.graph.nodes)
    places = [node for node in nodes if node.op == "placeholder"]
    batch = next(_sizes(n)[0] for n, s in zip(places, evaluation.inputs, strict=True) if s.role == "input")
    return sum(_macs(node) for node in nodes if node.op == "call_function") // batch


def step_work(
    programs: Mapping[str, Capture], spec: StepSpec, in_tiles: InTiles = lambda convolution: False
) -> StepWork:
    """Work of one training step of ``spec.batch`` examples: of those of the programs that it runs."""
    counted = [0.0, 0.0, 0.0]
    for name, times in ((ACCUMULATE, spec.micro_batches), ("train", 1)):
        if name not in programs:
            continue
        nodes = list(programs[name].graph.graph.nodes)
        places = [node for node in nodes if node.op == "placeholder"]
        roles = [spec.role for spec in programs[name].inputs]
        fed = [_sizes(n)[0] for n, role in zip(places, roles, strict=True) if role in ("input", "features")]
        scale = spec.batch / spec.micro_batches / fed[0] if fed else 1.0
        for node in nodes:
            if node.op == "call_function":
                share = times * (scale if _is_per_example(node) else 1.0)
                kinds = _kinds(node, scale, in_tiles)
                counted = [have + share * count for have, count in zip(counted, kinds, strict=True)]
    return StepWork(*(round(count) for count in counted))


def _kinds(node: fx.Node, scale: float, in_tiles: InTiles) -> tuple[int, int, int]:
    """Convolution, padded and matrix multiply-accumulates of one operation, backward ones included."""
    name = str(node.target).removeprefix("aten.").partition(".")[0]
    if name == "convolution":
        macs, (_, weight, _, *settings) = _macs(node), node.args
        return macs, macs * _padding(node, weight, settings, scale, in_tiles) // _PARTS, 0
    if name == "convolution_backward":
        gradient, x, weight, _, *settings, wanted = node.args
        each = _elements(x if settings[3] else gradient) * math.prod(_sizes(weight)[1:])
        macs = each * (bool(wanted[0]) + bool(wanted[1]))
        return macs, macs * _padding(gradient, weight, settings, scale, in_tiles) // _PARTS, 0
    if name in _PRODUCTS:
        return 0, 0, _macs(node)
    if str(node.target).startswith(_RECURRENT):  # a loop's backward pass, another such operation, does it twice more
        return 0, 0, 3 * _macs(node)
    return 0, 0, 0


_PARTS = 1 << 20


def _padding(output: Any, weight: Any, settings: list[Any], scale: float, in_tiles: InTiles) -> int:
    """How much more a convolution computes with both channels rounded up, in parts of 2^20; 0 with groups.

    Args:
        settings: stride, padding, dilation, whether it is a transposed one, output padding, groups.
        scale: examples of a run for each of the traced ones.
    """
    stride, padding, dilation, is_transposed, _, groups = settings
    if groups > 1:
        return 0
    (examples, _, *places), channels = _sizes(output), _sizes(weight)
    shape = ConvolutionShape(
        round(examples * scale), tuple(channels), tuple(places), tuple(stride), tuple(padding), tuple(dilation), groups
    )
    if not is_transposed and in_tiles(shape):
        return _PARTS * 16 // 36
    out, into = channels[:2]
    return _PARTS * (-(-out // _LANES) * _LANES) * (-(-into // _LANES) * _LANES) // (out * into)


def _is_per_example(node: fx.Node) -> bool:
    """Whether the operation takes or gives anything whose size follows the batch."""
    return any(_follows_batch(value) for value in (node, *node.args))


def _follows_batch(value: Any) -> bool:
    found = value.meta.get("val") if isinstance(value, fx.Node) else None
    tensors = found if isinstance(found, list | tuple) else [found]
    return any(isinstance(size, torch.SymInt) for t in tensors if isinstance(t, torch.Tensor) for size in t.shape)


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
