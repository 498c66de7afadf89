"""PriSM: every device trains a random part of the principal components of each layer, and of its channels.

The server holds each decomposed layer as U sqrt(Sigma) and sqrt(Sigma) V^T. A device gets components drawn without
replacement with probability sigma^kappa / sum, and the rows and input slices of the channels it keeps. Entries are
averaged over the devices that held them, and after every round the product is decomposed anew.
Source: Niu et al., "Overcoming resource constraints in federated learning: large models can be trained with only weak
clients" (TMLR 2023), sections 3 and 4, Eq. 5.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from torch import nn

from coordinator.aggregation.accumulator import Rule
from coordinator.aggregation.entrywise import EntrywiseMean
from coordinator.config.method_options import LOSSES, NORMS, Options
from coordinator.methods.fedavg import FULL, examples
from coordinator.submodels.build import module_tensors
from coordinator.submodels.channel_groups import ChannelMap, channel_map
from coordinator.submodels.component_sampling import SAMPLINGS, drawn_components
from coordinator.submodels.factorize import unrolled, weight_name
from coordinator.submodels.layout import dense_weight, hybrid_layout, principal_layers
from coordinator.submodels.module_paths import named_part
from coordinator.submodels.record import Cut, Factor, Form, LayerCut
from coordinator.submodels.spectrum import one_blas_thread, truncated_svd
from coordinator.submodels.values import DeviceProgram, Level, State, Submodel, Tensors, Update, require_level
from coordinator.submodels.width import Kept, cut_tensors, first_channels, kept_count, random_channels, tensor_slices
from edge.contracts.errors import ConfigError, PlanError, UpdateRejected
from edge.contracts.streams import stream_seed

if TYPE_CHECKING:
    from coordinator.submodels.narrowed import Slice

ROWS = ("first", "random", "all")
U, V, SIGMA = "prism/u/", "prism/v/", "prism/sigma/"
"""Where in a state's ``extra`` the factors and singular values of a layer lie, by its path."""


class PriSM:
    """Options, in kebab case:

    - ``levels``: keep ratios; 0.8, 0.6, 0.4, 0.2.
    - ``kappa``: exponent of the sampling probabilities; 2.5. The paper takes 4 for ResNet-18 at 0.2, 2 for the LSTM.
      ``kappas``: instead, one for every level, in the order of ``levels``.
    - ``sampling``: ``power``, ``softmax`` of the singular values, ``uniform``, or ``top``: always the largest ones.
      ``warm-up-rounds``: so many first rounds take the largest ones whatever ``sampling`` says; 0, the code has 50.
    - ``rows``: channels a device keeps of every group: the ``first``, ``random`` ones per device and round, or ``all``.
      Recurrent layers and what transformers add up keep all; of a transformer only what one linear layer hands to
      another (fc1 to fc2) loses channels. ``row-ratio``: how many, as a share of each group; the level's keep ratio.
      The published code keeps 0.4 of the rows at every keep ratio.
    - ``input-cut``: true: groups that a residual stream joins are cut alike, inputs as well as outputs, and the costs
      are those of the paper's Table 1. False: only rows of U are left out; the next layer reads all channels, those
      without a row are zeros before the norm, and stem, shortcuts and norms are whole. This is what the published code
      imitates with masks. The parts left out really are, but it costs more than Table 1; for ``first`` rows alone.
    - ``layout``: name patterns of the layers to decompose; by default all but the first, 1x1 ones and the classifier.
    - ``frobenius``: Frobenius decay on the factors instead of weight decay; true. ``frobenius-lambda``: its weight.
    - ``spectra``: record the effective rank of every decomposed layer in each round's metrics; false.
    - ``norm``: of training and evaluation; ``batch``, as in the paper. ``loss``: as FedAvg's.
    """

    name = "prism"
    synchronous_only = (
        "its components come from a decomposition of each state, and a step in one basis means nothing in another"
    )
    needs_each_update = "its devices hold different parts of the model and every entry has its own count"

    def __init__(self, module: nn.Module, options: Mapping[str, Any]) -> None:
        """Raises ConfigError for unknown or impossible options, PlanError for a model that cannot be cut so."""
        self._prepare(module, Options(self.name, options), sampling="power", rows="first")

    def _prepare(self, module: nn.Module, read: Options, *, sampling: str, rows: str) -> None:
        given = read.numbers("levels", (0.8, 0.6, 0.4, 0.2), low=0.001)
        ratios = sorted(given, reverse=True)
        kappa, kappas = read.number("kappa", 2.5, low=0) or 0.0, read.sequence("kappas")
        self._sampling = read.choice("sampling", SAMPLINGS, sampling)
        self._rows = read.choice("rows", ROWS, rows)
        self._row_ratio = read.number("row-ratio", None, low=0, strict=True)
        self._warm_up_rounds = read.integer("warm-up-rounds", 0, low=0)
        self._input_cut = read.flag("input-cut", True)
        patterns = read.names("layout")
        self._frobenius = read.flag("frobenius", True)
        strength = read.number("frobenius-lambda", None, low=0)
        self._wants_spectra = read.flag("spectra", False)
        self._loss, self._norm = read.choice("loss", LOSSES, "cross_entropy"), read.choice("norm", NORMS, "batch")
        read.finish()
        if max(ratios) > 1:
            raise ConfigError([f"$.method.levels: {max(ratios):g} given, keep ratios are at most 1"])
        if self._row_ratio is not None and self._row_ratio > 1:
            raise ConfigError([f"$.method.row-ratio: {self._row_ratio:g} given, it is a share of the rows, at most 1"])
        if self._row_ratio is not None and self._rows == "all":
            raise ConfigError(
                [f"$.method.row-ratio: {self._row_ratio:g} given with rows = 'all', which keeps every one"]
            )
        if kappas is not None and len(kappas) != len(given):
            raise ConfigError([f"$.method.kappas: {len(kappas)} given, one for each of {len(given)} levels expected"])
        self._kappas = dict(zip(given, kappas or [kappa] * len(given), strict=True))
        if not self._input_cut and self._rows == "random":
            problem = "false with rows = 'random' given; which rows are zeros is part of the program, so take 'first'"
            raise ConfigError([f"$.method.input-cut: {problem}"])
        self._extra_hyper = {} if strength is None else {"frobenius_lambda": strength}
        self._module = module
        chosen = hybrid_layout(module, patterns) if patterns else principal_layers(module)
        self._layers = {path: _form(named_part(module, path)) for path in chosen}
        self._weights = {path: weight_name(path, form) for path, form in self._layers.items()}
        if not self._layers:
            raise PlanError(f"{type(module).__name__} has no layer to decompose; name some in $.method.layout")
        is_recurrent = any(isinstance(part, nn.RNNBase) for part in module.modules())  # hidden units are shared state
        self._channels = channel_map(module) if self._rows != "all" and not is_recurrent else None
        self._levels = tuple(Level(f"keep {ratio:g}", ratio, ratio) for ratio in ratios)
        self._cuts: dict[Level, Cut] = {}

    def init(self) -> State:
        """The module's own initial weights and their components."""
        tensors = module_tensors(self._module)
        return State(tensors, self._decomposed({path: tensors[name] for path, name in self._weights.items()}))

    def levels(self) -> tuple[Level, ...]:
        """One per keep ratio, largest first."""
        return self._levels

    def cut_shape(self, level: Level, *, round_index: int, device: str, seed: int) -> Cut:
        """The level's ranks and channel counts; which components and channels they are is drawn with the values.

        Raises:
            PlanError: a level this ladder does not have.
        """
        require_level(self.name, level, self._levels)
        if level not in self._cuts:
            ranks = {path: tuple(range(self._rank(path, level))) for path in self._layers}
            self._cuts[level] = self._cut(self._kept(level, "first", 0, "", 0), ranks)
        return self._cuts[level]

    def program(self, cut: Cut) -> DeviceProgram:
        """Training with Frobenius decay on every pair of factors."""
        pairs = tuple((f"{path}.u", f"{path}.v") for path in sorted(cut) if cut[path].factor) if self._frobenius else ()
        hyper = self._extra_hyper if pairs else {}
        return DeviceProgram(loss=self._loss, frobenius=pairs, norm=self._norm, extra_hyper=hyper)

    def cut(self, state: State, level: Level, *, round_index: int, device: str, seed: int) -> Submodel:
        """Components and channels drawn for one device and round, and their values."""
        shape = self.cut_shape(level, round_index=round_index, device=device, seed=seed)
        sampling = "top" if round_index < self._warm_up_rounds else self._sampling
        chosen = {
            path: drawn_components(
                state.extra[SIGMA + path],
                self._rank(path, level),
                sampling,
                kappa=self._kappas[level.value],
                stream=stream_seed(seed, f"prism/{path}", round_index, device),
            )
            for path in self._layers
        }
        cut = self._cut(self._kept(level, self._rows, round_index, device, seed), chosen)
        return Submodel(cut, level, self._values(state, cut), self.program(shape))

    def aggregate(self, state: State, updates: Iterable[Update], rule: Rule | None = None) -> State:
        """Factors and dense entries, each the mean over the devices that held it; others keep their bits.

        Raises:
            PlanError: no update.
            UpdateRejected: an update that does not fit its cut or the model, or without examples.
        """
        mean = (rule or EntrywiseMean)(self._held(state))
        count = 0
        for update in updates:
            where = f"device {update.device}, round {state.round}"
            examples(update)
            try:
                slices = self._slices(update.cut)
            except PlanError as error:
                raise UpdateRejected(f"{where}: {error}; re-plan the device") from error
            mean.add(update.tensors, 1.0, where=where, slices=slices)
            count += 1
        if not count:
            raise PlanError(f"round {state.round}: no updates to aggregate; repeat the round")
        result = mean.result()
        factors = {U + path: result.pop(f"{path}.u") for path in self._layers}
        factors |= {V + path: result.pop(f"{path}.v") for path in self._layers}
        moved = [
            path
            for path in self._layers
            if any(not np.array_equal(factors[side + path], state.extra[side + path]) for side in (U, V))
        ]
        tensors = {name: result.get(name, value) for name, value in state.tensors.items()}
        for path in moved:
            shape = state.tensors[self._weights[path]].shape
            with one_blas_thread():
                product = _rows(factors[U + path]).astype(np.float64) @ _rows(factors[V + path]).astype(np.float64)
            tensors[self._weights[path]] = product.reshape(shape).astype(np.float32)
        return State(tensors, {**state.extra, **factors}, state.round + 1)

    def refresh(self, state: State) -> State:
        """New components of every layer whose product is no longer what they were taken from."""
        stale = {p: state.tensors[name] for p, name in self._weights.items() if not self._is_ordered(state, p)}
        return State(state.tensors, {**state.extra, **self._decomposed(stale)}, state.round) if stale else state

    def spectra(self, state: State) -> Mapping[str, np.ndarray]:
        """Singular values of the whole weights, which the refresh has found already."""
        return {path: state.extra[SIGMA + path] for path in self._layers} if self._wants_spectra else {}

    def eval_models(self, state: State) -> Mapping[str, Submodel]:
        """``server``, the whole model, and every level's first channels with its largest components."""
        program = DeviceProgram(loss=self._loss, norm=self._norm)
        models = {"server": Submodel({}, FULL, state.tensors, program)}
        for level in self._levels:
            cut = self.cut_shape(level, round_index=state.round, device="", seed=0)
            models[level.name] = Submodel(cut, level, self._values(state, cut), self.program(cut))
        return models

    # cuts

    def _rank(self, path: str, level: Level) -> int:
        shape = dense_weight(self._module, path).shape
        components = min(shape[0], math.prod(shape[1:]))
        return min(components, math.ceil(round(level.value * components, 9)))

    def _kept(self, level: Level, rows: str, round_index: int, device: str, seed: int) -> Kept:
        if self._channels is None:
            return {}
        ratio = self._row_ratio or level.value
        counts = {group: kept_count(size, ratio, "ceil") for group, size in self._cuttable(self._channels).items()}
        if rows != "random":
            return first_channels(counts)
        drawn = random_channels(self._channels, {**_all(self._channels), **counts}, seed=seed, round_index=round_index,
                                device=device)  # fmt: skip
        return {group: drawn[group] for group in counts}

    def _cuttable(self, channels: ChannelMap) -> dict[str, int]:
        """Groups whose channels a device may lack: of a network with layer norms only what one linear layer hands to
        another, since its residual stream is shared state."""
        sizes = {group.name: group.size for group in channels.groups}
        if not any(isinstance(part, nn.LayerNorm) for part in self._module.modules()):
            return sizes
        alone = [g for g in channels.groups if len(g.producers) == 1 and len(g.consumers) == 1]
        linear = {p: m.out_features for p, m in self._module.named_modules() if isinstance(m, nn.Linear)}
        return {g.name: g.size for g in alone if linear.get(g.producers[0]) == g.size}

    def _cut(self, kept: Kept, chosen: Mapping[str, tuple[int, ...]]) -> dict[str, LayerCut]:
        cut: dict[str, LayerCut] = {}
        if self._channels is not None and kept:
            cut = dict(self._channels.cut(kept)) if self._input_cut else self._rows_alone(self._channels, kept)
        for path, components in chosen.items():
            factor = Factor(self._layers[path], components)
            cut[path] = msgspec.structs.replace(cut.get(path, LayerCut()), factor=factor)
        return cut

    def _rows_alone(self, channels: ChannelMap, kept: Kept) -> dict[str, LayerCut]:
        """Records in which decomposed layers lack outputs and nothing lacks inputs."""
        cut = {}
        for path in self._layers:
            group = channels.group(path)
            if group is not None and len(kept.get(group.name, range(group.size))) < group.size:
                cut[path] = LayerCut(out_idx=kept[group.name], spread=group.size)
        return cut

    # values

    def _slices(self, cut: Cut) -> dict[str, Slice]:
        """Where each tensor of a cut lies in the server's dense tensors and factors."""
        dense = tensor_slices(self._module, cut)
        slices = {name: kept for name, kept in dense.items() if name not in self._weights.values()}
        for path in self._layers:
            record, rank_dims = cut.get(path, LayerCut()), dense_weight(self._module, path).dim() - 2
            if record.factor is None:
                raise PlanError(f"layer '{path}': no components in the cut")
            components = np.array(record.factor.components)
            rows, columns = _indices(record.out_idx), _indices(record.in_idx)
            slices[f"{path}.u"] = (rows, components, *[None] * rank_dims)
            slices[f"{path}.v"] = (components, columns, *[None] * rank_dims)
        return slices

    def _values(self, state: State, cut: Cut) -> dict[str, np.ndarray]:
        return cut_tensors(self._held(state), self._slices(cut))

    def _held(self, state: State) -> dict[str, np.ndarray]:
        """The server's tensors with the factors of decomposed layers in place of their weights."""
        held = {name: value for name, value in state.tensors.items() if name not in self._weights.values()}
        for path in self._layers:
            held |= {f"{path}.u": state.extra[U + path], f"{path}.v": state.extra[V + path]}
        return held

    def _decomposed(self, weights: Tensors) -> dict[str, np.ndarray]:
        """All components of each layer: u [N, n, 1...], v [n, M, k...] and the singular values."""
        parts: dict[str, np.ndarray] = {}
        for path, weight in weights.items():
            matrix = unrolled(weight, "conv1x1")
            spectrum = truncated_svd(matrix, min(matrix.shape))
            left = spectrum.left_NR.astype(np.float32)
            parts[U + path] = left.reshape(*left.shape, *[1] * (weight.ndim - 2))
            parts[V + path] = spectrum.right_RM.astype(np.float32).reshape(-1, *weight.shape[1:])
            parts[SIGMA + path] = spectrum.values_R.astype(np.float32)
        return parts

    def _is_ordered(self, state: State, path: str) -> bool:
        """Whether the factors are those of the last decomposition: columns of u then have norms sqrt(sigma)."""
        norms = np.square(_rows(state.extra[U + path]).astype(np.float64)).sum(0)
        others = np.square(_rows(state.extra[V + path]).astype(np.float64)).sum(1)
        sigma = state.extra[SIGMA + path].astype(np.float64)
        scale = max(float(sigma.max(initial=0.0)), 1e-30)
        return bool(max(np.abs(norms - sigma).max(), np.abs(others - sigma).max()) <= 1e-5 * scale)


def _rows(factor: np.ndarray) -> np.ndarray:
    return factor.reshape(len(factor), -1)


def _indices(chosen: tuple[int, ...] | None) -> np.ndarray | None:
    return None if chosen is None else np.array(chosen)


def _all(channels: ChannelMap) -> dict[str, int]:
    return {group.name: group.size for group in channels.groups}


def _form(layer: nn.Module | nn.Parameter) -> Form:
    if isinstance(layer, nn.Parameter):
        return "recurrent"
    return "linear" if isinstance(layer, nn.Linear) else "conv1x1"
