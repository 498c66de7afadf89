"""Successive layer training's configurations: which layers are frozen, trained whole, or scaled in width, per step.

A *layer* is a convolution (or a linear layer other than the classifier) with what follows it up to the next one;
shortcut convolutions belong to the block they end. Configuration (K_F, K_T, s): layers 1..K_F are frozen and whole,
K_F+1..K_T trained and whole, the rest trained at width s, always the first channels.
Source: Pfeiffer et al., "Aggregating capacity in FL through successive layer training" (NeurIPS 2023), sections 3, 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import msgspec
import torch
from torch import Tensor, nn
from torch.nn.functional import batch_norm, relu
from torch.overrides import TorchFunctionMode

from coordinator.submodels.build import apply_cut
from coordinator.submodels.channel_groups import channel_map
from coordinator.submodels.layout import SHORTCUTS
from coordinator.submodels.record import LayerCut
from coordinator.submodels.width import first_channels, kept_count
from edge.contracts.errors import PlanError
from edge.contracts.manifest import InputSpec

if TYPE_CHECKING:
    from coordinator.submodels.record import Cut
    from edge.contracts.manifest import InputSpec


BATCH = 32


def step_memory(module: nn.Module, cut: Cut, spec: InputSpec, *, batch: int = BATCH) -> int:
    """Bytes of one training step of ``module`` under ``cut``, float32; nothing is run or measured."""
    built = apply_cut(module, cut).to("meta").train()
    count = _MapCount()
    passed = [part.register_forward_hook(count.passed) for part in built.modules() if isinstance(part, nn.Identity)]
    with count:
        built(torch.zeros(batch, *spec.shape, dtype=getattr(torch, spec.dtype), device="meta"))
    for handle in passed:
        handle.remove()
    parameters = sum(p.numel() for p in built.parameters())
    return 4 * (count.elements + parameters + sum(p.numel() for p in built.parameters() if p.requires_grad))


class _MapCount(TorchFunctionMode):
    """Adds up the elements of every result that needs a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = _empty(*args, **(kwargs or {})) if func in _KEEP_SIZE else func(*args, **(kwargs or {}))
        if isinstance(out, Tensor) and out.requires_grad and not isinstance(out, nn.Parameter):
            self.elements += out.numel()
        return out

    def passed(self, _part: nn.Module, _inputs: object, out: Tensor) -> None:
        """An identity's output, which no operation made."""
        if out.requires_grad:
            self.elements += out.numel()


_KEEP_SIZE = (batch_norm, relu, torch.relu)
"""Operators that torch works out in Python even for tensors without values, three quarters of a count's time."""


def _empty(values: Tensor, *others: Any, **options: Any) -> Tensor:
    """What such an operator gives, as far as a count looks: its size, and whether it needs a gradient."""
    needs = any(isinstance(part, Tensor) and part.requires_grad for part in (values, *others, *options.values()))
    return torch.empty_like(values, requires_grad=needs)


RESOLUTION = 100_000
"""Bytes at which memory is compared: the published tables are at 0.1 MB."""
_FINEST = 1000
"""Ratios are whole thousandths."""


@dataclass(frozen=True)
class Configuration:
    """One way to cut the network; ``ratio`` is the width s of the layers behind ``trained``."""

    frozen: int
    trained: int
    ratio: float


class LayerSteps:
    """The layers of one module, and its cuts.

    Attributes:
        layers: paths in execution order.
    """

    def __init__(self, module: nn.Module, spec: InputSpec) -> None:
        """Raises PlanError for a module without such layers, or one that cannot be cut in width."""
        self.module, self.spec = module, spec
        is_shortcut = {p for p, _ in module.named_modules() if any(fnmatchcase(p, pattern) for pattern in SHORTCUTS)}
        identities = [p for p in sorted(is_shortcut) if isinstance(module.get_submodule(p), nn.Identity)]
        self._channels = channel_map(module, spec, selections=identities)
        self.layers = tuple(
            path
            for path, part in module.named_modules()
            if isinstance(part, nn.Conv2d | nn.Conv1d | nn.Linear)
            and path not in is_shortcut
            and path not in self._channels.whole
        )
        if len(self.layers) < 2:
            raise PlanError(f"{type(module).__name__} has {len(self.layers)} layers to train one after the other")
        index = {path: i for i, path in enumerate(self.layers)}
        self._group_layer = {
            group.name: min((index[p] for p in group.producers if p in index), default=0)
            for group in self._channels.groups
        }
        self._groups = {group.name: group.size for group in self._channels.groups}
        self._cumulative = self._channels_before()
        self._memory: dict[tuple[int, tuple[tuple[str, int], ...]], int] = {}

    def cut(self, configuration: Configuration) -> dict[str, LayerCut]:
        """The records of a configuration."""
        cut = dict(self._channels.cut(first_channels(self._counts(configuration))))
        for path in self._frozen_parts(configuration.frozen):
            cut[path] = msgspec.structs.replace(cut.get(path, LayerCut()), frozen=True)
        return cut

    def memory(self, configuration: Configuration) -> int:
        """Bytes of a step, by SLT's model."""
        counts = self._counts(configuration)
        key = (configuration.frozen, tuple(sorted(counts.items())))
        if key not in self._memory:
            self._memory[key] = step_memory(self.module, self.cut(configuration), self.spec)
        return self._memory[key]

    def scaled_memory(self, ratio: float) -> int:
        """Bytes of a step of the whole network at width ``ratio``: the limit a ratio stands for."""
        return self.memory(Configuration(0, 0, ratio))

    def table(self, limit: int) -> tuple[float, ...]:
        """s_1 .. s_N: for every step n the widest head that fits beside layer n, N the first step with s = 1.

        Found from the last layer backwards, so that the widths never fall from one step to the next. Where the frozen
        layers' own weights outgrow the limit the last steps fit at no width; the table then ends before them, below 1.

        Raises:
            PlanError: not even the first step fits.
        """
        found: list[float] = []
        ratio = _FINEST
        for step in range(len(self.layers), 0, -1):
            widest = self._widest(step, ratio, limit)
            if widest:
                ratio = widest
                found.append(ratio / _FINEST)
            elif found:
                ratio, found = _FINEST, []  # a step in the middle: what lies above it is never reached
        if not found:
            raise PlanError(
                f"no step fits {limit / 1e6:.1f} MB at any width, layer '{self.layers[0]}' alone takes more; "
                "raise the level"
            )
        widths = found[::-1]
        return tuple(widths[: widths.index(1.0) + 1] if 1.0 in widths else widths)

    def depth(self, trained: int, ratio: float, limit: int) -> int:
        """Most whole layers a device with ``limit`` can train below the head: K_T - K_F, at least 1 if K_T is."""
        for frozen in range(trained):
            if _rounded(self.memory(Configuration(frozen, trained, ratio))) <= _rounded(limit):
                return trained - frozen
        return min(1, trained)

    def quantity(self, configuration: Configuration) -> int:
        """Q(K_F, K_T, s): weights trained, kernel areas left out. Source: SLT, Eq. 6."""
        total = 0
        for k, path in enumerate(self.layers, start=1):
            outputs, inputs = self.module.get_submodule(path).weight.shape[:2]
            if configuration.frozen < k <= configuration.trained:
                total += inputs * outputs
            elif k > configuration.trained:
                if k > configuration.trained + 1:
                    inputs = kept_count(inputs, configuration.ratio, "floor")
                total += inputs * kept_count(outputs, configuration.ratio, "floor")
        return total

    def trained_parameters(self, configuration: Configuration) -> int:
        """Elements of all parameters that a configuration trains, kernel areas, norms and the classifier included."""
        built = apply_cut(self.module, self.cut(configuration))
        return sum(p.numel() for p in built.parameters() if p.requires_grad)

    def _widest(self, step: int, at_most: int, limit: int) -> int:
        """The largest ratio, in thousandths, that fits, 0 if none does; memory never falls with the ratio.

        Looked for in turn where memory would meet the limit if it grew evenly, and in the middle.
        """

        def needed(ratio: int) -> int:
            return self.memory(Configuration(step - 1, step, ratio / _FINEST))

        if _rounded(above := needed(at_most)) <= _rounded(limit):
            return at_most
        low, high, below, is_guess = 0, at_most, 0, False
        while high - low > 1:
            is_guess = not is_guess
            share = (limit - below) / (above - below) if is_guess else 0.5
            ratio = min(high - 1, max(low + 1, low + round((high - low) * share)))
            memory = needed(ratio)
            if _rounded(memory) <= _rounded(limit):
                low, below = ratio, memory
            else:
                high, above = ratio, memory
        return low

    def _counts(self, configuration: Configuration) -> dict[str, int]:
        counts = {}
        for name, size in self._groups.items():
            if self._group_layer[name] < configuration.trained or configuration.ratio == 1:
                continue
            before = self._cumulative.get(name, 0)
            upper = kept_count(before + size, configuration.ratio, "floor")
            lower = kept_count(before, configuration.ratio, "floor") if before else 0
            counts[name] = min(size, max(1, upper - lower))
        return counts

    def _channels_before(self) -> dict[str, int]:
        """Channels that concatenation puts behind a group's own, of groups that are concatenated.

        Source: SLT's DenseNet, whose growth at ratio s is floor((in + g) s) - floor(in s).
        """
        before: dict[str, int] = {}
        for (path, end), side in self._channels.sides.items():
            groups = list(dict.fromkeys(side.group_P.tolist()))
            if end != "in" or len(groups) < 2 or not isinstance(self.module.get_submodule(path), nn.Conv2d):
                continue
            newest = self._channels.groups[groups[0]]
            before.setdefault(newest.name, sum(self._channels.groups[g].size for g in groups[1:] if g >= 0))
        return before

    def _frozen_parts(self, count: int) -> Sequence[str]:
        """Paths of everything with parameters that comes before layer ``count + 1``."""
        if not count:
            return ()
        paths = [path for path, part in self.module.named_modules() if list(part.parameters(recurse=False))]
        end = paths.index(self.layers[count]) if count < len(self.layers) else len(paths)
        return paths[:end]


def _rounded(size: int) -> int:
    return round(size / RESOLUTION)
