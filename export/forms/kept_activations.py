"""Activations that wait for the backward pass in float16: half of the largest part of a step's memory.

What autograd saves of a forward pass is rounded to the nearest float16 where it is saved and widened where the backward
pass reads it. Loss and forward pass keep their bits; gradients are those at rounded activations. The rounding is a pair
of torch's hooks for saved tensors, so the traced step and the reference of the parity gate round the same values.

Not rounded: parameters, the batch and views of them; logits; and what no gradient goes through, such as the statistics
of a norm, dropout's masks, and what frozen layers hand to the first trained one.
Source: activation compression (Chen et al., "ActNN", ICML 2021), with float16 in place of codebooks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from export.capture import Capture
from export.training_step import StepSpec

LARGEST = 65504.0
"""Beyond float16's range is what rounds to it: an infinity would make every gradient before it no number."""
NARROWING_NOISE = 5e-5
"""Error of a gradient that is usual where two float32 computations round to float16: now and then they are on two sides
of the middle between two of its values, which lie 5e-4 apart. Measured on small networks, whose sums even out least:
1.1e-4 where torch float32 was 8e-7 off, 1.2e-4 where it was 2e-4 off."""
NAMESPACE = "apportion_forms"
_LIBRARY = torch.library.Library(NAMESPACE, "DEF")
_LIBRARY.define("narrowed(Tensor x) -> Tensor")
_LIBRARY.define("widened(Tensor x) -> Tensor")
_LIBRARY.impl("narrowed", lambda x: x.clamp(-LARGEST, LARGEST).to(torch.float16), "CPU")
_LIBRARY.impl("narrowed", lambda x: torch.empty_like(x, dtype=torch.float16), "Meta")
_LIBRARY.impl("widened", lambda x: x.to(torch.float32), "CPU")
_LIBRARY.impl("widened", lambda x: torch.empty_like(x, dtype=torch.float32), "Meta")
OPERATORS: Any = getattr(torch.ops, NAMESPACE)
NARROWED, WIDENED = OPERATORS.narrowed.default, OPERATORS.widened.default
_VIEWS = frozenset({torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default})


@dataclass(frozen=True)
class _Narrowed:
    value: Tensor
    dtype: torch.dtype


@contextmanager
def keeping_activations(spec: StepSpec, held: Iterable[Tensor]) -> Iterator[None]:
    """While this lasts, autograd saves activations as ``spec`` says.

    Args:
        held: tensors that are there anyway, parameters and batch.
    """
    if not spec.kept_activations:
        yield
        return
    there = {_memory(tensor) for tensor in held}

    def pack(value: Tensor) -> Tensor | _Narrowed:
        if _memory(value) in there or not _is_activation(value, spec.classes):
            return value
        return _Narrowed(NARROWED(value.detach()), value.dtype)

    def unpack(saved: Tensor | _Narrowed) -> Tensor:
        return WIDENED(saved.value).to(saved.dtype) if isinstance(saved, _Narrowed) else saved

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        yield


def _memory(value: Tensor) -> int:
    return int(value.untyped_storage()._cdata)


def _is_activation(value: Tensor, classes: int) -> bool:
    sizes = [size for size in value.shape[1:] if isinstance(size, int)]
    return value.requires_grad and value.is_floating_point() and value.dim() > 1 and classes not in sizes


def kept_once(program: Capture) -> Capture:
    """``program``, changed, in which a value that several operations save is narrowed once."""
    graph = program.graph.graph
    known: dict[fx.Node, fx.Node] = {}
    for node in list(graph.nodes):
        if node.target is not NARROWED:
            continue
        (value,) = node.args
        if value in known:
            node.replace_all_uses_with(known[value])
        elif value.target in _VIEWS and value.args[0] in known:
            with graph.inserting_before(node):
                view = graph.call_function(value.target, (known[value.args[0]], *value.args[1:]))
            view.meta = dict(node.meta)
            node.replace_all_uses_with(view)
        else:
            known[value] = node
            continue
        graph.erase_node(node)
    program.graph.recompile()
    return program


def is_kept(node: fx.Node) -> bool:
    """Whether ``node`` gives float16 because activations wait in it."""
    if node.target in _VIEWS:
        return isinstance(node.args[0], fx.Node) and is_kept(node.args[0])
    return node.target is NARROWED
