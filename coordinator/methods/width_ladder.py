"""What all methods that scale width have in common: a ladder of ratios, cuts by channel group, entry-wise means.

A method decides which channels a device keeps; this file turns that into records, tensors and programs and takes the
updates back. It is used by such a method, never inherited from.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from torch.nn.modules.batchnorm import _BatchNorm

from coordinator.aggregation.accumulator import Accumulator, Rule
from coordinator.aggregation.entrywise import EntrywiseMean
from coordinator.config.method_options import Options
from coordinator.methods.fedavg import examples
from coordinator.submodels.build import apply_cut, module_tensors
from coordinator.submodels.channel_groups import ChannelMap, channel_map
from coordinator.submodels.module_paths import named_part
from coordinator.submodels.narrowed import SCALED, Slice
from coordinator.submodels.record import Cut, LayerCut, cut_digest
from coordinator.submodels.values import DeviceProgram, Level, State, Submodel, Tensors, Update, require_level
from coordinator.submodels.width import (
    Kept,
    Rounding,
    check_runs,
    cut_tensors,
    first_channels,
    group_counts,
    tensor_slices,
    within,
)
from edge.contracts.errors import PlanError, UpdateRejected

if TYPE_CHECKING:
    from torch import nn

ROUNDINGS = ("ceil", "round", "floor")
_OUTPUT = "the model's output"
_STATISTICS = "statistics/"
"""Where in a state's ``extra`` the static statistics of each level lie."""


def width_level(ratio: float) -> Level:
    """The level of a width ratio in (0, 1]."""
    return Level("full" if ratio == 1 else f"width {ratio:g}", ratio, ratio)


class WidthLadder:
    """Levels of one module by width ratio.

    Attributes:
        channels: the module's channel groups.
        levels: largest first.
        server_cut: what the server holds of the module: all of it, or, with ``shrink``, the largest level.
    """

    def __init__(
        self,
        method: str,
        module: nn.Module,
        ratios: Sequence[float],
        *,
        rounding: str,
        by_examples: bool,
        shrink: bool,
        concatenation: str = "each",
        are_given: bool = True,
    ) -> None:
        """Cut the module at every ratio.

        Args:
            are_given: whether the ratios are somebody's choice; of default ones those are left out that cut nothing,
                or what another one cuts.

        Raises:
            PlanError: the module cannot be cut, or a ratio given cuts nothing or what another one cuts.
        """
        self.method, self.module = method, module
        self.channels: ChannelMap = channel_map(module)
        self._by_examples = by_examples
        rule: Rounding = "ceil" if rounding == "ceil" else "floor" if rounding == "floor" else "round"
        cumulative = concatenation == "cumulative"
        self._counts: dict[Level, dict[str, int]] = {}
        for ratio in sorted(ratios, reverse=True):
            counts = group_counts(self.channels, ratio, rule, cumulative=cumulative)
            problem = self._is_useless(ratio, counts)
            if not problem:
                self._counts[width_level(ratio)] = counts
            elif are_given:
                raise PlanError(problem)
        self.levels = tuple(self._counts)
        smallest = self.cut(self.levels[-1], first_channels(self._counts[self.levels[-1]]))
        if smallest:
            check_runs(module, smallest, module.input_spec)
        largest = self.levels[0]
        self.server_cut: Cut = self.cut(largest, first_channels(self._counts[largest])) if shrink else {}
        self._server_module = apply_cut(module, self.server_cut) if self.server_cut else module
        self._classifier = [layer for layer, reason in self.channels.whole.items() if reason == _OUTPUT]
        self._buffers = {name for name, _ in module.named_buffers()}
        self._slices: tuple[str, Mapping[str, Slice]] = ("", {})

    @property
    def classifier(self) -> tuple[str, ...]:
        """Paths of the layers whose outputs are the model's."""
        return tuple(self._classifier)

    def weight(self, update: Update) -> int:
        """An update's weight in a mean of parameters: 1, or its ``num_examples``.

        Raises:
            UpdateRejected: an update without examples.
        """
        return examples(update) if self._by_examples else min(1, examples(update))

    def counts(self, level: Level) -> Mapping[str, int]:
        """Channel group -> channels of a level.

        Raises:
            PlanError: a level this ladder does not have.
        """
        require_level(self.method, level, self.levels)
        return self._counts[level]

    def first(self, level: Level) -> Cut:
        """The level's first channels of every group."""
        return self.cut(level, first_channels(self.counts(level)))

    def cut(self, level: Level, kept: Kept) -> dict[str, LayerCut]:
        """The records of a level that keeps ``kept``."""
        self.counts(level)
        return self.channels.cut(kept)

    def scaled(self, cut: Cut, level: Level) -> dict[str, LayerCut]:
        """``cut`` with the outputs of narrowed layers divided by the level's ratio in training. Source: HeteroFL.

        Layers whose channels a batch norm takes are left: it divides the factor out again, and its running statistics,
        which evaluation and wider devices share, would be those of scaled outputs.
        """
        result = dict(cut)
        for path, record in cut.items():
            if record.out_idx is None or level.value == 1 or type(named_part(self.module, path)) not in SCALED:
                continue
            group = self.channels.group(path)
            layers = () if group is None else group.producers
            if not any(isinstance(named_part(self.module, layer), _BatchNorm) for layer in layers):
                result[path] = msgspec.structs.replace(record, scale=level.value)
        return result

    def init(self) -> State:
        """The server's part of the module's own initial weights."""
        return State(cut_tensors(module_tensors(self.module), tensor_slices(self.module, self.server_cut)))

    def slices(self, cut: Cut) -> Mapping[str, Slice]:
        """The entries of the server's tensors that ``cut`` holds."""
        digest = cut_digest(cut)
        if self._slices[0] != digest:
            nested = within(self.server_cut, _without_scales(cut)) if self.server_cut else cut
            self._slices = (digest, tensor_slices(self._server_module, nested))
        return self._slices[1]

    def submodel(self, state: State, level: Level, cut: Cut, program: DeviceProgram) -> Submodel:
        """The values of ``cut``; static statistics of the level when the state has them."""
        tensors: Tensors = cut_tensors(state.tensors, self.slices(cut)) if cut else state.tensors
        own = {
            name.removeprefix(f"{_STATISTICS}{level.name}/"): value
            for name, value in state.extra.items()
            if name.startswith(f"{_STATISTICS}{level.name}/")
        }
        fitting = {name: value for name, value in own.items() if value.shape == tensors[name].shape}
        return Submodel(cut, level, {**tensors, **fitting} if fitting else tensors, program)

    def server(self, state: State, program: DeviceProgram) -> Submodel:
        """The server's own model."""
        level = self.levels[0] if self.server_cut else width_level(1.0)
        return Submodel(self.server_cut, level, state.tensors, program)

    def aggregate(self, state: State, updates: Iterable[Update], rule: Rule | None = None) -> State:
        """Every entry the mean over the devices that held it, of equal weight or by ``num_examples``; running
        statistics by ``num_examples``. A classifier's rows count where the update says which labels its device owns.

        Raises:
            PlanError: no update.
            UpdateRejected: an update that does not fit its cut or the model, or without examples.
        """
        mean = (rule or EntrywiseMean)(state.tensors)
        count = 0
        for update in updates:
            self.counts(update.level)  # refuses strangers
            self._add(mean, update, where=f"device {update.device}, round {state.round}")
            count += 1
        if not count:
            raise PlanError(f"round {state.round}: no updates to aggregate; repeat the round")
        # Statistics gathered for the weights before these no longer hold.
        extra = {name: value for name, value in state.extra.items() if not name.startswith(_STATISTICS)}
        return State(mean.result(), extra, state.round + 1)

    def with_statistics(self, state: State, updates: Iterable[Update]) -> State:
        """The state with static statistics: entry by entry for the server, and of each level from its own devices.

        Source: sBN of HeteroFL; a narrower model has other statistics, so every evaluated cut needs its own.
        """
        mean = EntrywiseMean(state.tensors)
        by_level: dict[str, EntrywiseMean] = {}
        extra = dict(state.extra)
        for update in updates:
            where = f"device {update.device}, statistics"
            slices = self.slices(update.cut)
            mean.add(update.tensors, examples(update), where=where, slices=slices)
            if update.level.name not in by_level:
                by_level[update.level.name] = EntrywiseMean(dict(update.tensors))
            by_level[update.level.name].add(update.tensors, examples(update), where=where)
        for name, own in by_level.items():
            extra.update({f"{_STATISTICS}{name}/{buffer}": value for buffer, value in own.result().items()})
        return State(mean.result(), extra, state.round)

    def _add(self, mean: Accumulator, update: Update, *, where: str) -> None:
        number = examples(update)
        weight = number if self._by_examples else 1
        try:
            slices = self.slices(update.cut)
        except PlanError as error:
            raise UpdateRejected(f"{where}: {error}; re-plan the device") from error
        rows = {}
        if update.labels is not None:
            rows = {f"{layer}.{name}": update.labels for layer in self._classifier for name in ("weight", "bias")}
        weights = {name: number if name in self._buffers else weight for name in update.tensors}
        mean.add(update.tensors, weights, where=where, slices=slices, rows=rows)

    def _is_useless(self, ratio: float, counts: Mapping[str, int]) -> str:
        """Why a level would add nothing to those above it, or an empty string."""
        name = type(self.module).__name__
        widest = max((group.size for group in self.channels.groups), default=1)
        if ratio * widest < 1:
            return f"{self.method} level {ratio:g} leaves no channel of {name}'s widest layer, {widest}; raise it"
        if ratio < 1 and all(counts[group.name] == group.size for group in self.channels.groups):
            return f"{self.method} level {ratio:g} leaves all channels of {name}; lower it"
        for level, others in self._counts.items():
            if others == counts:
                return f"{self.method} levels {level.value:g} and {ratio:g} leave the same channels of {name}; drop one"
        return ""


def read_width_options(read: Options, *, rounding: str = "ceil", by_examples: bool = False) -> tuple[str, str, bool]:
    """``rounding``, ``concatenation`` and ``weight-by-examples``, the options of every such method."""
    return (
        read.choice("rounding", ROUNDINGS, rounding),
        read.choice("concatenation", ("each", "cumulative"), "each"),
        read.flag("weight-by-examples", by_examples),
    )


def leading_sizes(module: nn.Module, whole: Cut, part: Cut) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Leading sizes of the tensors of ``whole`` that ``part``, a smaller cut, takes; empty when it takes all.

    Raises:
        PlanError: what it takes of a tensor is not its beginning.
    """
    built = apply_cut(module, _without_scales(whole))
    slices = tensor_slices(built, within(_without_scales(whole), _without_scales(part)))
    state = built.state_dict()
    sizes = []
    for name in sorted(slices):
        if name not in state:
            continue
        for dim, kept in enumerate(slices[name]):
            if kept is not None and not np.array_equal(kept, np.arange(len(kept))):
                raise PlanError(
                    f"layer '{name.rpartition('.')[0]}': a narrower model takes entries {kept[:8].tolist()}... of "
                    f"dimension {dim} of '{name}', not its beginning, so no program can nest it; use heterofl, which "
                    "cuts once a round"
                )
        shape = tuple(state[name].shape)
        sizes.append((name, tuple(size if k is None else len(k) for k, size in zip(slices[name], shape, strict=True))))
    return tuple(sizes)


def _without_scales(cut: Cut) -> dict[str, LayerCut]:
    plain = {path: msgspec.structs.replace(record, scale=1.0) for path, record in cut.items()}
    return {path: record for path, record in plain.items() if record != LayerCut()}
