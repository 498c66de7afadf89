"""The method interface: everything a federated method decides, and nothing about devices, brokers or files.

``init -> (cut -> device trains -> aggregate -> refresh) per round -> eval_models``. A method is pure: it gets a state
and gives a new one, draws only from keyed streams, and never sees an update twice. Index maps of a cut are stored with
its assignment, so ``aggregate`` gets back exactly the submodel that was sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from coordinator.submodels.record import Cut
from coordinator.submodels.values import (
    AS_THE_RUN_SAYS,
    DeviceProgram,
    Level,
    LocalWork,
    State,
    Submodel,
    Tensors,
    Update,
)

if TYPE_CHECKING:
    import numpy as np
    from torch import nn

    from coordinator.aggregation.accumulator import Rule


@runtime_checkable
class SelectsDevices(Protocol):
    """A method that does not want every device in every round (PruneFL's initial pruning)."""

    def select(self, state: State, devices: Sequence[str]) -> Sequence[str]:
        """Those of ``devices`` that may take part in the round after ``state``."""


@runtime_checkable
class SetsLocalWork(Protocol):
    """A method whose devices do not train in every round as the run says (PruneFL's initial pruning)."""

    def local_work(self, state: State) -> LocalWork:
        """What is asked of the devices in the round after ``state``."""


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


@runtime_checkable
class CountsOnFeatures(Protocol):
    """A method that may choose its cuts for devices that keep what frozen layers give (sparse updates)."""

    counts_on_features: bool
    """Whether it did, so that the run has to have ``[training] cached-features``."""


@runtime_checkable
class MovesProducts(Protocol):
    """A method whose devices train factors, in a basis that a decomposition of each state gives them anew.

    A step of factors means nothing in another basis; what the product of them moved by does. So a late update is added
    to a later state as products: what :meth:`products` gives of it takes its place, and ``aggregate`` takes either.
    """

    def products(self, tensors: Tensors, cut: Cut) -> dict[str, np.ndarray]:
        """Tensors in the cut's names -> those with factor pairs multiplied out, in float64, under the names of
        :meth:`whole`; others passed on.

        Raises:
            PlanError: factors that do not fit each other or the cut.
        """

    def whole(self, state: State) -> Tensors:
        """What updates are averaged into, by name."""


def shape_for(
    method: Method, level: Level, state: State | None, *, round_index: int, device: str = "", seed: int = 0
) -> Cut:
    """A level's cut in the round after ``state``, values apart; without a state, that of a run's beginning."""
    if state is not None and isinstance(method, ShapesFollowState):
        return method.shape_after(state, level, round_index=round_index, device=device, seed=seed)
    return method.cut_shape(level, round_index=round_index, device=device, seed=seed)


def local_work(method: Method, state: State) -> LocalWork:
    """What ``method`` asks of devices in the round after ``state``; by default nothing but what the run says."""
    return method.local_work(state) if isinstance(method, SetsLocalWork) else AS_THE_RUN_SAYS


class Method(Protocol):
    """One paper. ``module`` is the dense torch module; its weights are read in ``init`` only."""

    name: str
    synchronous_only: str
    """Why an update cannot be added to a later state than the one it was trained from, as a clause; empty where it can:
    where a cut of the same level, round and device holds the same entries of every state, or where products of its
    factors do (:class:`MovesProducts`). Then a run may be buffered.
    """
    needs_each_update: str
    """Why one update, the mean of all by their examples, does not determine its aggregate, as a clause; empty where it
    does: where all devices share one cut. Then updates may be summed before anybody sees them, under masks, with noise
    or by a relay.
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
