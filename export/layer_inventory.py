"""The layers of a module as one batch runs through them: types, shapes, parameters."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import TreeSpec, tree_flatten

from export.training_step import StepSpec

_BATCHES = (2, 3)
"""Two batch sizes, so that sizes that grow with the batch are told from those that do not."""


@dataclass(frozen=True)
class BatchSize:
    """A size of ``slope`` times the batch, plus ``offset``."""

    slope: int
    offset: int

    def __str__(self) -> str:
        """``N``, ``4N``, ``N+1``."""
        batch = "N" if self.slope == 1 else f"{self.slope}N"
        return f"{batch}{self.offset:+d}" if self.offset else batch


Shape = tuple[int | BatchSize, ...]


@dataclass(frozen=True)
class Value:
    """One tensor that a layer takes or gives."""

    shape: Shape
    dtype: torch.dtype


@dataclass(frozen=True)
class Layer:
    """A layer as it was called first.

    Attributes:
        kind: its type's name.
        settings: its type's own description of how it is set up.
        takes: tensors among its arguments.
        gives: its results, None for what is no tensor, and ``form``, what holds them.
        parameters: their number; of a layer with layers inside, those of its own.
        is_leaf: whether it runs no other layer.
    """

    path: str
    kind: str
    settings: str
    takes: tuple[Value, ...]
    gives: tuple[Value | None, ...]
    form: TreeSpec | None
    parameters: int
    is_leaf: bool

    def __deepcopy__(self, _: Any) -> Layer:
        """Itself: it never changes."""
        return self


@dataclass
class _Call:
    takes: list[Tensor]
    gives: list[Any]
    form: TreeSpec
    inside: bool = False


def layers_of(module: nn.Module, spec: StepSpec) -> dict[str, Layer]:
    """Path -> layer, in the order in which they are called; layers that are never called are not in it.

    A copy of ``module`` runs in train mode; the caller's random state stays as it was.
    """
    runs = [_calls(module, spec, batch) for batch in _BATCHES]
    parts = dict(module.named_modules())
    layers = {}
    for path, call in runs[0].items():
        other = runs[1].get(path, call)
        part, is_leaf = parts[path], not call.inside
        layers[path] = Layer(
            path,
            type(part).__name__,
            part.extra_repr(),
            tuple(value for value in _values(call.takes, other.takes) if value is not None),
            _values(call.gives, other.gives),
            call.form,
            _parameters(part, is_leaf),
            is_leaf,
        )
    return layers


def uncalled_layer(path: str, part: nn.Module) -> Layer:
    """A layer that no batch runs through."""
    return Layer(path, type(part).__name__, part.extra_repr(), (), (), None, _parameters(part, True), True)


def example_input(spec: StepSpec, batch: int) -> Tensor:
    """Random examples of the step's input."""
    shape = (batch, *spec.input.shape)
    return torch.randint(0, spec.input.vocabulary, shape) if spec.input.dtype == "int64" else torch.randn(shape)


def _calls(module: nn.Module, spec: StepSpec, batch: int) -> dict[str, _Call]:
    probe = copy.deepcopy(module).float().train()
    calls: dict[str, _Call] = {}
    order: list[str] = []
    running: list[str] = []
    for name, part in probe.named_modules():

        def enter(_part: nn.Module, _args: Any, _kwargs: Any, path: str = name) -> None:
            order.append(path)
            running.append(path)

        def leave(_part: nn.Module, args: Any, kwargs: Any, out: Any) -> None:
            path = running.pop()
            takes = [value for value in tree_flatten((args, kwargs))[0] if isinstance(value, Tensor)]
            calls.setdefault(path, _Call(takes, *tree_flatten(out)))
            if any(other.startswith(f"{path}." if path else "") and other != path for other in order):
                calls[path].inside = True

        part.register_forward_pre_hook(enter, with_kwargs=True)
        part.register_forward_hook(leave, with_kwargs=True)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        probe(example_input(spec, batch))
    return {path: calls[path] for path in dict.fromkeys(order)}


def _parameters(part: nn.Module, with_inner: bool) -> int:
    return sum(p.numel() for p in part.parameters(recurse=with_inner))


def _values(one: Sequence[Any], two: Sequence[Any]) -> tuple[Value | None, ...]:
    pairs = zip(one, two, strict=False)
    return tuple(Value(_shape(a, b), a.dtype) if isinstance(a, Tensor) else None for a, b in pairs)


def _shape(one: Tensor, two: Tensor) -> Shape:
    return tuple(_size(a, b) for a, b in zip(one.shape, two.shape, strict=False))


def _size(one: int, two: int) -> int | BatchSize:
    slope = (two - one) // (_BATCHES[1] - _BATCHES[0])
    return BatchSize(slope, one - slope * _BATCHES[0]) if slope else one
