"""FedHM: each device trains a low-rank factorization of the global model, at the rank it can afford.

Every level factorizes the same layers (the hybrid layout) at rank outputs / f; the server multiplies the factors back
and averages dense weights, weighted by capacity. Evaluated are every level's own network and the global model.
Source: FedHM, journal version (Eq. 2) for the aggregation weights; its preprint and reference code by option.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from torch import nn

from coordinator.aggregation.accumulator import Rule
from coordinator.aggregation.entrywise import EntrywiseMean
from coordinator.config.method_options import LABEL_MASKED, LOSSES, NORMS, Options
from coordinator.methods.fedavg import examples
from coordinator.submodels.build import module_tensors
from coordinator.submodels.factorize import SpectrumCache, factorize_tensors, recover_tensors, unrolled, weight_name
from coordinator.submodels.layout import factorized_cut, hybrid_layout, largest_ranks
from coordinator.submodels.record import Cut, LayerCut
from coordinator.submodels.spectrum import singular_values
from coordinator.submodels.values import DeviceProgram, Level, State, Submodel, Tensors, Update, require_level
from edge.contracts.errors import ConfigError, PlanError, UpdateRejected

AGGREGATIONS = {"journal": 1.0, "preprint": 5.0, "reference": 1.0}
"""Formula of the weights -> its default temperature.

``journal`` and ``preprint`` are softmax(gamma / tau) with capacity gamma (the preprint's further 1/P is a misprint:
its weights would sum to 1/P); its setting for fixed levels is tau = inf. ``reference`` is softmax(-f / tau).
"""

DEFAULT_LEVELS = (1, 2, 4, 8)
"""Rank factors of the paper's tables."""


class FedHM:
    """Options, in kebab case:

    - ``levels``: rank factors; 1 is the whole model. By default 1 and those of 2, 4 and 8 that make the model smaller.
    - ``aggregation``: ``journal``, ``preprint`` or ``reference``; ``temperature``: tau, by default 1, 5 and 1.
    - ``weight-by-examples``: multiply the weights with ``num_examples``; false, as in the paper.
    - ``server-joins``: when no device of level 1 took part, the previous global model does, with its weight; false.
      Source: FedHM's reference code; it keeps the part of the spectrum that small devices cannot represent.
    - ``spectra``: record the effective rank of every factorized layer in each round's metrics; false. For it each one
      is decomposed whole.
    - ``layout``: name patterns of the layers to factorize (``!pattern`` takes out); by default the module's own.
    - ``rank-rounding``: ``round`` or ``floor``.
    - ``frobenius``: Frobenius decay on the factors instead of weight decay; true. ``frobenius-lambda``: its weight; by
      default the run's weight decay, as in the paper.
    - ``distillation-weight``, ``distillation-temperature``: the received model teaches from the second round on, with
      this weight and temperature; 0 and 1. Source: the preprint, for unevenly spread labels.
    - ``loss``, ``norm``: as FedAvg's. ``report-labels``: with label-masked cross-entropy devices say which classes they
      have examples of, and a row of the classifier is the mean over those that have its class; true. The reference code
      leaves such a row divided by the weights of all devices, which draws rows of rare classes to zero.
    """

    name = "fedhm"
    synchronous_only = ""
    refuses_server_optimizer = (
        "a device's factors lack what its rank cuts away, and a server optimizer would take that for a step"
    )
    needs_each_update = (
        "its aggregate is a mean of products of factors, which the mean of the factors does not determine"
    )

    def __init__(self, module: nn.Module, options: Mapping[str, Any]) -> None:
        """Raises ConfigError for unknown or impossible options, PlanError when no layer can be factorized."""
        read = Options(self.name, options)
        factors = sorted(read.numbers("levels", DEFAULT_LEVELS, low=1))
        self._formula = read.choice("aggregation", tuple(AGGREGATIONS), "journal")
        temperature = read.number("temperature", AGGREGATIONS[self._formula], low=0, strict=True)
        self._temperature = AGGREGATIONS[self._formula] if temperature is None else temperature
        self._by_examples = read.flag("weight-by-examples", False)
        self._server_joins = read.flag("server-joins", False)
        patterns = read.names("layout")
        rounding = read.choice("rank-rounding", ("round", "floor"), "round")
        self._frobenius = read.flag("frobenius", True)
        self._wants_spectra = read.flag("spectra", False)
        strength = read.number("frobenius-lambda", None, low=0)
        self._teaching = read.number("distillation-weight", 0.0, low=0) or 0.0
        temperature_kd = read.number("distillation-temperature", 1.0, low=0, strict=True)
        self._loss, self._norm = read.choice("loss", LOSSES, "cross_entropy"), read.choice("norm", NORMS, "running")
        self._reports_labels = read.flag("report-labels", True) and self._loss == LABEL_MASKED
        read.finish()
        if strength is not None and math.isinf(strength):
            raise ConfigError(["$.method.frobenius-lambda: inf given, a finite number expected"])
        self._extra_hyper = {} if strength is None else {"frobenius_lambda": strength}
        self._teacher_hyper: dict[str, float] = {}
        if self._teaching:
            self._teacher_hyper = {
                "distillation_weight": self._teaching,
                "distillation_temperature": temperature_kd or 1.0,
            }
        self._module = module
        layers = hybrid_layout(module, patterns)
        if not layers and "levels" in options and factors[-1] > 1:
            raise PlanError(
                f"fedhm has nothing to factorize in {type(module).__name__}: of convolutions and linear layers the "
                "first and the last stay dense, and of recurrent layers only an LSTM without dropout and projection "
                "has a factorized form; use fedavg or a cut in width"
            )
        self._cuts: dict[Level, dict[str, LayerCut]] = {}
        for factor in factors:
            cut = factorized_cut(module, layers, factor, rounding="floor" if rounding == "floor" else "round")
            if factor > 1 and not cut and "levels" not in options:
                continue
            if factor > 1 and not cut:
                raise PlanError(
                    f"fedhm level {factor:g} makes none of {len(layers)} layers of {type(module).__name__} smaller; "
                    "raise the level, or name layers in $.method.layout"
                )
            self._cuts[_level(factor)] = cut
        self._largest_ranks = largest_ranks(list(self._cuts.values()))
        self._buffers = {name for name, _ in module.named_buffers()}
        linear = [path for path, layer in module.named_modules() if isinstance(layer, nn.Linear)]
        self._classifier = [f"{path}.{name}" for path in linear[-1:] for name in ("weight", "bias")]
        self._spectra: SpectrumCache | None = None

    def init(self) -> State:
        """The module's own initial weights."""
        return State(module_tensors(self._module))

    def levels(self) -> tuple[Level, ...]:
        """One level per rank factor, largest first."""
        return tuple(self._cuts)

    def cut_shape(self, level: Level, *, round_index: int, device: str, seed: int) -> Cut:
        """The level's hybrid factorization; the same for every round and device.

        Raises:
            PlanError: a level this ladder does not have.
        """
        require_level("fedhm", level, self._cuts)
        return self._cuts[level]

    def program(self, cut: Cut) -> DeviceProgram:
        """Training with Frobenius decay on every factor pair of ``cut``."""
        pairs = tuple((f"{path}.u", f"{path}.v") for path in sorted(cut) if cut[path].factor) if self._frobenius else ()
        hyper = {**(self._extra_hyper if pairs else {}), **self._teacher_hyper}
        return DeviceProgram(
            loss=self._loss,
            frobenius=pairs,
            norm=self._norm,
            distillation=self._teaching > 0,
            extra_hyper=hyper,
            reports_labels=self._reports_labels,
        )

    def cut(self, state: State, level: Level, *, round_index: int, device: str, seed: int) -> Submodel:
        """The level's factors by spectral initialisation, everything else as it is in the global model."""
        cut = self.cut_shape(level, round_index=round_index, device=device, seed=seed)
        tensors: Tensors = state.tensors
        if cut:
            tensors = factorize_tensors(state.tensors, cut, spectra=self._spectra_of(state))
        program = self.program(cut)
        if self._teaching and round_index == 0:
            # Nobody has learnt anything yet that could be taught; the artifact is the same.
            program = replace(program, extra_hyper={**program.extra_hyper, "distillation_weight": 0.0})
        return Submodel(cut, level, tensors, program)

    def aggregate(self, state: State, updates: Iterable[Update], rule: Rule | None = None) -> State:
        """The mean of the devices' dense weights; running statistics weighted by ``num_examples``.

        Raises:
            PlanError: no update.
            UpdateRejected: an update that does not fit its cut or the model, or without examples.
        """
        mean = (rule or EntrywiseMean)(state.tensors)
        total, count, has_full = 0.0, 0, False
        for update in updates:
            where = f"device {update.device}, round {state.round}"
            number = examples(update)
            self.cut_shape(update.level, round_index=state.round, device=update.device, seed=0)  # refuses strangers
            weight = self._weight(update.level) * (number if self._by_examples else 1)
            try:
                dense = self.products(update.tensors, update.cut)
            except PlanError as error:
                raise UpdateRejected(f"{where}: {error}; re-plan the device") from error
            weights = {name: number if name in self._buffers else weight for name in dense}
            rows = {} if update.labels is None else dict.fromkeys(self._classifier, update.labels)
            mean.add(dense, weights, where=where, rows=rows)
            total, count, has_full = total + weight, count + 1, has_full or not update.cut
        if not count:
            raise PlanError(f"round {state.round}: no updates to aggregate; repeat the round")
        if total == 0:
            raise PlanError(
                f"round {state.round}: at temperature {self._temperature:g} the weights of all {count} devices vanish; "
                "raise $.method.temperature"
            )
        if self._server_joins and not has_full:
            own = {name: value for name, value in state.tensors.items() if name not in self._buffers}
            mean.add(own, self._weight(_level(1.0)), where="the previous global model")
        return State(mean.result(), state.extra, state.round + 1)

    def products(self, tensors: Tensors, cut: Cut) -> dict[str, np.ndarray]:
        """The dense weights that the cut's factors stand for; see :class:`coordinator.methods.method.MovesProducts`."""
        return recover_tensors(tensors, cut)

    def whole(self, state: State) -> Tensors:
        """The global model."""
        return state.tensors

    def refresh(self, state: State) -> State:
        """The state itself: the decomposition is part of the cut."""
        return state

    def spectra(self, state: State) -> Tensors:
        """Singular values of the global model's unrolled weights."""
        if not self._wants_spectra:
            return {}
        forms = {path: e.factor.form for cut in self._cuts.values() for path, e in cut.items() if e.factor}
        return {
            path: singular_values(unrolled(state.tensors[weight_name(path, form)], form))
            for path, form in forms.items()
        }

    def eval_models(self, state: State) -> Mapping[str, Submodel]:
        """``server`` and every level by its name; level 1 is the global model again."""
        whole = Submodel({}, _level(1.0), state.tensors, self.program({}))
        levels = {lv.name: self.cut(state, lv, round_index=state.round, device="", seed=0) for lv in self._cuts}
        return {"server": whole, **levels}

    def _weight(self, level: Level) -> float:
        """Numerator of the softmax over participants, scaled to 1 for the whole model; the mean divides by the sum."""
        if self._formula == "reference":
            return math.exp((1 - level.value) / self._temperature)
        return math.exp((level.capacity - 1) / self._temperature)

    def _spectra_of(self, state: State) -> SpectrumCache:
        """One decomposition per layer and state, shared by all levels and devices of a round."""
        if self._spectra is None or self._spectra.tensors is not state.tensors:
            self._spectra = SpectrumCache(state.tensors, self._largest_ranks)
        return self._spectra


def _level(factor: float) -> Level:
    return Level("full" if factor == 1 else f"rank 1/{factor:g}", factor, 1 / factor)
