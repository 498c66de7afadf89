"""The method interface: everything a federated method decides, and nothing about devices, brokers or files.

``init -> (cut -> device trains -> aggregate -> refresh) per round -> eval_models``. A method is pure: it gets a state
and gives a new one, draws only from keyed streams, and never sees an update twice. Index maps of a cut are stored with
its assignment, so ``aggregate`` gets back exactly the submodel that was sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from coordinator.submodels.record import Cut

if TYPE_CHECKING:
    import numpy as np
    from torch import nn

    from coordinator.aggregation.accumulator import Rule

Tensors = Mapping[str, "np.ndarray"]


@dataclass(frozen=True)
class Level:
    """One rung of a method's capacity ladder.

    Attributes:
        name: as shown to people and stored in the ledger (``rank 1/4``).
        value: the number the paper uses (rank factor f, width ratio s, keep ratio).
        capacity: relative size in (0, 1], the gamma of FedHM's aggregation weights.
    """

    name: str
    value: float
    capacity: float


@dataclass(frozen=True)
class Variant:
    """A training program that moves a part of the parameters; the exporter's own class of that name compiles it.

    Attributes:
        name: the program is ``train_<name>``.
        sizes: (tensor, leading sizes) of those that take part narrower; entries beyond them keep their bits.
        submodule: path of the only submodule that runs; empty for the whole module.
    """

    name: str
    sizes: tuple[tuple[str, tuple[int, ...]], ...] = ()
    submodule: str = ""


@dataclass(frozen=True)
class DeviceProgram:
    """What a device is asked to do beyond plain SGD; compiled into the artifact's graph.

    Attributes:
        loss: ``cross_entropy``, ``bce_one_hot`` or ``label_masked_cross_entropy``.
        frobenius: pairs (u name, v name) under Frobenius decay lambda/2 ||UV||_F^2, exempt from weight decay.
        frozen: parameter names without gradient.
        accumulators: parameter names whose squared gradients are summed in the graph.
        masked: parameter names of which only entries under a mask move: tensor ``<name>#mask`` of the submodel.
        sparse: those of ``masked`` that a device holds as kept entries alone, each with the most it may keep; chosen
            for a device by :mod:`coordinator.submodels.sparse_layers`, not by methods.
        distillation: the received model teaches; ``distillation_weight`` and ``_temperature`` are in ``extra_hyper``.
        norm: ``running`` or ``batch`` statistics.
        variants: training programs of a part of the tensors, beside ``train``.
        turns: which programs a device runs: ``train`` alone; ``draw``, one for every batch, drawn among ``train`` and
            the variants (FjORD); ``each``, all variants on every batch (Split-Mix).
        probe: the losses of the received, the server's previous and thinned weights on the first batch come back, as
            the accumulator ``probe#losses``; see :mod:`export.loss_probe` for the tensors it reads.
        extra_hyper: values for further ``hyper`` inputs (``frobenius_lambda``).
        reports_labels: devices say which classes they have examples of; :attr:`Update.labels` is theirs.
    """

    loss: str = "cross_entropy"
    frobenius: tuple[tuple[str, str], ...] = ()
    frozen: tuple[str, ...] = ()
    accumulators: tuple[str, ...] = ()
    masked: tuple[str, ...] = ()
    sparse: tuple[tuple[str, int], ...] = ()
    distillation: bool = False
    norm: str = "running"
    variants: tuple[Variant, ...] = ()
    turns: Literal["train", "draw", "each"] = "train"
    probe: bool = False
    extra_hyper: Mapping[str, float] = field(default_factory=dict)
    reports_labels: bool = False


@dataclass(frozen=True)
class State:
    """What the server holds between rounds.

    Attributes:
        tensors: the global model, names of the dense module (parameters and buffers), float32 or int64.
        extra: further tensors of the method (spectra, counts); saved and restored with ``tensors``.
        round: rounds aggregated so far.
    """

    tensors: Tensors
    extra: Tensors = field(default_factory=dict)
    round: int = 0


@dataclass(frozen=True)
class Submodel:
    """A cut with its values: what one device gets in one round.

    Attributes:
        cut: the LayerCut records.
        tensors: weights and buffers in the cut's shapes and names.
        program: the device program.
    """

    cut: Cut
    level: Level
    tensors: Tensors
    program: DeviceProgram


@dataclass(frozen=True)
class Update:
    """One device's result with the submodel it was trained from.

    Attributes:
        tensors: the uploaded tensors (trained parameters, running buffers, accumulators), the cut's shapes.
        num_examples: examples the device trained on.
        labels: classes the device has examples of, where the program asks and the device says so.
    """

    device: str
    level: Level
    cut: Cut
    tensors: Tensors
    num_examples: int
    labels: tuple[int, ...] | None = None


@runtime_checkable
class SelectsDevices(Protocol):
    """A method that does not want every device in every round (PruneFL's initial pruning)."""

    def select(self, state: State, devices: Sequence[str]) -> Sequence[str]:
        """Those of ``devices`` that may take part in the round after ``state``."""


@runtime_checkable
class TimesRounds(Protocol):
    """A method with a time model of its own (PruneFL's, from which it prunes)."""

    def round_seconds(self, state: State) -> float:
        """Seconds of the round after ``state``, by that model."""


@runtime_checkable
class KeepsStatistics(Protocol):
    """A method whose evaluated models do not all share their static statistics (cuts in width)."""

    def with_statistics(self, state: State, updates: Iterable[Update]) -> State:
        """``state`` with what the devices' ``stats`` programs gathered; ``updates`` hold buffers, in cut shapes."""


@runtime_checkable
class ObservesScores(Protocol):
    """A method that goes by the accuracies its models reach (SLT's early stopping)."""

    def observe(self, state: State, accuracies: Mapping[str, float]) -> State:
        """``state`` after its models were evaluated; ``accuracies`` by the labels of ``eval_models``."""


@runtime_checkable
class HasSpectra(Protocol):
    """A method that decomposes layers of the global model, whose singular values a round may record."""

    def spectra(self, state: State) -> Tensors:
        """Singular values of every decomposed layer of the whole model, by path; none unless its options ask."""


@runtime_checkable
class ShapesFollowState(Protocol):
    """A method whose cuts depend on more than the round; ``cut_shape`` then is that of the first state."""

    def shape_after(self, state: State, level: Level, *, round_index: int, device: str, seed: int) -> Cut:
        """What ``cut_shape`` is for the round after ``state``."""


class Method(Protocol):
    """One paper. ``module`` is the dense torch module; its weights are read in ``init`` only."""

    name: str
    synchronous_only: str
    """Why an update cannot be added to a later state than the one it was trained from, as a clause; empty where it can:
    where a cut of the same level, round and device holds the same entries of every state. Then a run may be buffered.
    """

    def __init__(self, module: nn.Module, options: Mapping[str, Any]) -> None:
        """Raises ConfigError for unknown or impossible options, PlanError for a model it cannot cut."""

    def init(self) -> State:
        """The state before round 0, from the module's own initial weights."""

    def levels(self) -> tuple[Level, ...]:
        """The capacity ladder, largest first."""

    def cut_shape(self, level: Level, *, round_index: int, device: str, seed: int) -> Cut:
        """The LayerCut records alone, without values; enough to export and to cost."""

    def program(self, cut: Cut) -> DeviceProgram:
        """What devices holding ``cut`` are asked to do."""

    def cut(self, state: State, level: Level, *, round_index: int, device: str, seed: int) -> Submodel:
        """The submodel for one device; the same arguments give the same bytes."""

    def aggregate(self, state: State, updates: Iterable[Update], rule: Rule | None = None) -> State:
        """The new state; consumes ``updates`` once, in the order given, with memory O(model), sums in float64.

        ``rule`` takes the place of the method's mean of trained tensors and running statistics; None is that mean.
        """

    def refresh(self, state: State) -> State:
        """Work after aggregation (SVD, re-prune, next step), or the state itself."""

    def eval_models(self, state: State) -> Mapping[str, Submodel]:
        """Every model the paper evaluates, by label; ``server`` is the global model itself."""
