"""Random numbers of a module's forward pass as inputs of its step: dropout, drop path, noise.

Nothing is drawn inside a graph. Every place at which the module draws in train mode, found by running it once, is an
input of the step (role ``draw``) that every runtime is fed from the order's keyed stream
(:func:`edge.contracts.streams.drawn_value`), so masks are the same bits everywhere and again after a restart.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._python_dispatch import TorchDispatchMode

from edge.contracts.errors import ExportRefused
from edge.contracts.tensors import BATCH, TensorSpec
from export.forward_check import probe_batch, run_forward, running_layers
from export.training_step import StepSpec
from export.written_out_draws import WRITTEN_OUT, Kind, Taken

DRAW = "#draw"
"""``<layer>#draw`` is what a layer draws first in a step, ``<layer>#draw1`` what it draws next."""
ROOT = "module"
"""In place of a layer's path: what the module's own forward draws."""

_BATCHES = (2, 3)
"""Two batch sizes, which tell the sizes that follow the batch from those that do not."""
_ADVICE = "dropout, torch.rand, torch.randn or torch.bernoulli"


@dataclass(frozen=True)
class Draw:
    """A place at which a forward pass draws.

    Attributes:
        spec: the input that is fed: examples first, so that micro-batches can share it out.
        layer: path of the innermost layer.
        kind: what is drawn there.
        sizes: of the drawn tensor; None for the one that follows the batch.
        parts: that size is so many times the batch.
    """

    spec: TensorSpec
    layer: str
    kind: Kind
    sizes: tuple[int | None, ...]
    parts: int

    def laid_out(self, value: Tensor) -> Tensor:
        """The fed ``value`` in the layout of the drawn tensor."""
        if None not in self.sizes:
            return value
        axis = self.sizes.index(None)
        if self.parts == 1:
            return value.movedim(0, axis) if axis else value
        return (value.movedim((0, 1), (axis, axis + 1)) if axis else value).flatten(axis, axis + 1)

    def is_of(self, kind: Kind, sizes: Sequence[Any]) -> bool:
        """Whether a tensor like this one is asked for; sizes that are still symbols agree with all."""
        same = (a is None or not isinstance(b, int) or a == b for a, b in zip(self.sizes, sizes, strict=False))
        return self.kind == kind and len(self.sizes) == len(sizes) and all(same)


Draws = tuple[Draw, ...]
"""The places of one forward pass, in order of execution."""


def draws_of(module: nn.Module, spec: StepSpec, *, suffix: str = "") -> Draws:
    """Where ``module``, in the mode it is in, draws; a copy runs, and no random state of the caller's moves.

    Args:
        suffix: to every name, where one manifest has several modules' draws.

    Raises:
        ExportRefused: naming a layer that draws what no step has, that draws without torch, that draws in evaluation
            too, or that does not run.
    """
    first = _recorded(module, spec, _BATCHES[0])
    if not first:
        return ()
    second = _recorded(module, spec, _BATCHES[1])
    if len(first) != len(second):
        raise _irregular(first[-1].layer)
    for place in _recorded(without_draws(module), spec, _BATCHES[0]):
        raise ExportRefused(
            place.layer or "(the module itself)",
            "it draws random numbers in evaluation too",
            instead="training=self.training, or a draw under 'if self.training:',",
        )
    counts: dict[str, int] = {}
    found = []
    for one, two in zip(first, second, strict=True):
        label = one.layer or ROOT
        number = counts[label] = counts.get(label, -1) + 1
        found.append(_draw(f"{label}{DRAW}{number or ''}{suffix}", one, two))
    return tuple(found)


def without_draws(module: nn.Module) -> nn.Module:
    """A copy that draws nothing: layers as in evaluation, but batch norms in the mode they are in."""
    copied = copy.deepcopy(module)
    for part in copied.modules():
        if not isinstance(part, _BatchNorm):
            part.training = False
    return copied


@contextmanager
def undrawn(module: nn.Module) -> Iterator[None]:
    """``module`` itself as :func:`without_draws` for a while; what only draws in training is written out all the same.

    Raises:
        ExportRefused: it draws.
    """

    def take(kind: Kind, sizes: Sequence[Any]) -> Tensor:
        raise _irregular("")

    training = [part for part in module.modules() if part.training and not isinstance(part, _BatchNorm)]
    for part in training:
        part.training = False
    try:
        with _Intercepted(take):
            yield
    finally:
        for part in training:
            part.training = True


@contextmanager
def fed(draws: Draws, values: Mapping[str, Tensor]) -> Iterator[None]:
    """Within it, what the module draws is read from ``values``; the backward pass belongs inside.

    Raises:
        ExportRefused: the module draws other numbers than when it was looked at.
    """
    if not draws:
        yield
        return
    remaining = iter(draws)

    def take(kind: Kind, sizes: Sequence[Any]) -> Tensor:
        draw = next(remaining, None)
        if draw is None or not draw.is_of(kind, sizes):
            raise _irregular((draw or draws[-1]).layer)
        return draw.laid_out(values[draw.spec.name])

    # Fused attention draws inside its kernel.
    with sdpa_kernel(SDPBackend.MATH), _Intercepted(take):
        yield
    if (left := next(remaining, None)) is not None:
        raise _irregular(left.layer)


def has_draws(names: Iterable[str]) -> bool:
    """Whether one of the inputs ``names`` is a draw."""
    return any(DRAW in name for name in names)


class _Intercepted(TorchDispatchMode):
    """Operations that draw are written out in what ``take`` gives; all others run as they are."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing here is compiled by Dynamo, and telling it so would import it: seconds at the start of a process."""
        return False

    def __init__(self, take: Taken, running: Sequence[str] = ()) -> None:
        super().__init__()
        self._take, self._running = take, running

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        written_out = WRITTEN_OUT.get(func)
        if written_out is not None:
            return written_out(self._take, *args, **kwargs)
        if torch.Tag.nondeterministic_seeded in func.tags and not _draws_nothing(func, args, kwargs):
            raise ExportRefused(
                (self._running[-1] if self._running else "") or "(the module itself)",
                f"it draws random numbers with {func}, which no training step has",
                instead=_ADVICE,
            )
        return func(*args, **kwargs)


def _draws_nothing(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether it would draw for a dropout of its own, which is off."""
    for place, argument in enumerate(func._schema.arguments):
        if argument.name in ("dropout", "dropout_p"):
            return not (args[place] if place < len(args) else kwargs.get(argument.name, argument.default_value))
    return False


@dataclass(frozen=True)
class _Place:
    layer: str
    kind: Kind
    sizes: tuple[int, ...]


def _recorded(module: nn.Module, spec: StepSpec, batch: int) -> list[_Place]:
    """Every draw of one forward pass in the mode the module is in."""
    try:
        return _recorded_once(module, spec, batch)
    except _FrozenNumbers:  # another thread of this process may have drawn meanwhile; a module does so every time
        return _recorded_once(module, spec, batch)


def _recorded_once(module: nn.Module, spec: StepSpec, batch: int) -> list[_Place]:
    probe = copy.deepcopy(module)
    places: list[_Place] = []
    with _untouched_states() as states, torch.no_grad(), running_layers(probe, states.check) as running:
        torch.manual_seed(0)
        examples = probe_batch(spec, batch)
        numbers = torch.Generator().manual_seed(0)
        states.note()

        def take(kind: Kind, sizes: Sequence[Any]) -> Tensor:
            places.append(_Place(running[-1] if running else "", kind, tuple(sizes)))
            drawn = torch.rand((*sizes, *kind.more), generator=numbers)
            return drawn < kind.probability if kind.dtype == "bool" else drawn

        with sdpa_kernel(SDPBackend.MATH), _Intercepted(take, running):
            run_forward(probe, spec, examples, running)
    return places


class _FrozenNumbers(ExportRefused):
    """A generator that is not watched has moved."""


class _States:
    """The generators that a module could draw from behind torch's operations."""

    def __init__(self) -> None:
        self.note()

    def note(self) -> None:
        """Take the present states for the known ones."""
        self.python, self.numpy, self.torch = random.getstate(), np.random.get_state(), torch.get_rng_state()

    def restore(self) -> None:
        """Set all of them back."""
        random.setstate(self.python)
        np.random.set_state(self.numpy)
        torch.set_rng_state(self.torch)

    def check(self, layer: str) -> None:
        """Raises, naming ``layer``, when one has moved."""
        moved: Literal["Python's random", "numpy.random", "torch's generator", ""] = ""
        if random.getstate() != self.python:
            moved = "Python's random"
        elif not _same(np.random.get_state(), self.numpy):
            moved = "numpy.random"
        elif not torch.equal(torch.get_rng_state(), self.torch):
            moved = "torch's generator"
        if moved:
            raise _FrozenNumbers(
                layer or "(the module itself)",
                f"it draws from {moved} in a way that a graph would freeze: every step would have the same numbers",
                instead=_ADVICE,
            )


@contextmanager
def _untouched_states() -> Iterator[_States]:
    before = _States()
    try:
        yield _States()
    finally:
        before.restore()


def _same(one: Any, two: Any) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, two, strict=True))


def _draw(name: str, one: _Place, two: _Place) -> Draw:
    """The input for a place, from its sizes at two batches."""
    following = [i for i, (a, b) in enumerate(zip(one.sizes, two.sizes, strict=False)) if a != b]
    if one.kind != two.kind or len(one.sizes) != len(two.sizes):
        raise _irregular(one.layer)
    shape: tuple[int | Literal["batch"], ...] = one.sizes
    sizes: tuple[int | None, ...] = one.sizes
    parts = 1
    if following:
        axis = following[0]
        parts = one.sizes[axis] // _BATCHES[0]
        ends = (parts * _BATCHES[0], parts * _BATCHES[1])
        if len(following) > 1 or (one.sizes[axis], two.sizes[axis]) != ends:
            raise ExportRefused(
                one.layer or "(the module itself)",
                f"it draws a tensor of shape {list(one.sizes)} at batch {_BATCHES[0]} and {list(two.sizes)} at batch "
                f"{_BATCHES[1]}, which has no part for each example",
                instead="a draw with as many numbers for every example",
            )
        others = (*one.sizes[:axis], *one.sizes[axis + 1 :])
        shape = (BATCH, *((parts,) if parts > 1 else ()), *others)
        sizes = (*one.sizes[:axis], None, *one.sizes[axis + 1 :])
    spec = TensorSpec(name, (*shape, *one.kind.more), one.kind.dtype, "draw", probability=one.kind.probability)
    return Draw(spec, one.layer, one.kind, sizes, parts)


def _irregular(layer: str) -> ExportRefused:
    return ExportRefused(
        layer or "(the module itself)",
        "it draws other random numbers from one run to the next, or draws again in the backward pass",
        instead="the same draws in every forward pass, and no checkpoint of torch's around them",
    )
