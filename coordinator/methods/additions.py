"""What the methods share that train additions to a frozen model: one size for everybody, plain weighted means.

A subclass says which additions. The base is sent once; additions and the classifier travel up and down. There is one
size, because additions of two sizes have no mean (FedLoRA's factors do, as products).
Source: FedHM, journal version, whose Table 5 compares FedLoRA with these; the papers of each for what is added.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from msgspec.structs import replace

from coordinator.aggregation.accumulator import Rule
from coordinator.aggregation.weighted_mean import WeightedMean
from coordinator.config.method_options import LOSSES, NORMS, Options
from coordinator.methods.fedavg import examples
from coordinator.submodels.additions import draw_additions
from coordinator.submodels.build import apply_cut, module_tensors
from coordinator.submodels.frozen_base import classifier, frozen_but
from coordinator.submodels.record import Cut, LayerCut
from coordinator.submodels.values import DeviceProgram, Level, State, Submodel, Update, require_level
from edge.contracts.errors import ConfigError, PlanError

if TYPE_CHECKING:
    from torch import nn

    from coordinator.submodels.values import Tensors


class AdditionMethod:
    """A method but for its additions. Options of every such method, in kebab case:

    - ``levels``: one size, of all devices.
    - ``head``: path of the linear layer that is trained itself; by default the module's last one.
    - ``loss``, ``norm``: as FedAvg's. Frozen batch norms normalise with batch statistics.
    """

    name: ClassVar[str]
    synchronous_only: ClassVar[str] = ""
    needs_each_update: ClassVar[str] = ""
    default_size: ClassVar[int]
    unit: ClassVar[str]
    """What a level counts, in the name of the level."""

    def __init__(self, module: nn.Module, options: Mapping[str, Any]) -> None:
        """Raises ConfigError for unknown or impossible options, PlanError for a model that takes no such addition."""
        read = Options(self.name, options)
        sizes = read.numbers("levels", (self.default_size,), low=1)
        heads = read.names("head")
        self._loss, self._norm = read.choice("loss", LOSSES, "cross_entropy"), read.choice("norm", NORMS, "running")
        self.read_own(read)
        read.finish()
        size = one_size(self.name, sizes)
        head = classifier(module, heads)
        self.module = module
        self._level = Level(f"{size} {self.unit}", size, 1.0)
        self._head = frozenset(f"{head}.{name}" for name, _ in module.get_submodule(head).named_parameters())
        self._frozen = tuple(name for name, _ in module.named_parameters() if name not in self._head)
        self._cut = frozen_but(module, {head})
        for path, record in self.additions(head, size).items():
            self._cut[path] = replace(record, frozen=path in self._cut)
        self._built = apply_cut(module, self._cut)  # refuses what takes no addition

    def read_own(self, read: Options) -> None:
        """Read the options only this method has."""

    def additions(self, head: str, size: int) -> dict[str, LayerCut]:
        """The records of the additions, by path.

        Raises:
            ConfigError: patterns that match nothing.
            PlanError: the module has no place for them.
        """
        raise NotImplementedError

    def init(self) -> State:
        """The module's own initial weights and the additions' first values, drawn by the module's seed."""
        draw_additions(self._built, initial_seed(self.module))
        return State(module_tensors(self._built))

    def levels(self) -> tuple[Level, ...]:
        """The one size."""
        return (self._level,)

    def cut_shape(self, level: Level, *, round_index: int, device: str, seed: int) -> Cut:
        """Everything frozen but the classifier, with the additions; the same for every round and device.

        Raises:
            PlanError: another level.
        """
        require_level(self.name, level, self.levels())
        return self._cut

    def program(self, cut: Cut) -> DeviceProgram:
        """Training of the additions and the classifier alone."""
        return DeviceProgram(loss=self._loss, frozen=self._frozen, norm=self._norm)

    def cut(self, state: State, level: Level, *, round_index: int, device: str, seed: int) -> Submodel:
        """The global model, which has the additions."""
        cut = self.cut_shape(level, round_index=round_index, device=device, seed=seed)
        return Submodel(cut, level, state.tensors, self.program(cut))

    def aggregate(self, state: State, updates: Iterable[Update], rule: Rule | None = None) -> State:
        """The mean of additions, classifier and running statistics, weighted by ``num_examples``; the base as it is.

        Raises:
            PlanError: no update, or one of another level.
            UpdateRejected: an update that does not fit the model, or without examples.
        """
        mean = (rule or WeightedMean)(self._trained(state))
        count = 0
        for update in updates:
            self.cut_shape(update.level, round_index=state.round, device=update.device, seed=0)  # refuses strangers
            mean.add(update.tensors, examples(update), where=f"device {update.device}, round {state.round}")
            count += 1
        if not count:
            raise PlanError(f"round {state.round}: no updates to aggregate; repeat the round")
        return State({**state.tensors, **mean.result()}, state.extra, state.round + 1)

    def refresh(self, state: State) -> State:
        """The state itself."""
        return state

    def eval_models(self, state: State) -> Mapping[str, Submodel]:
        """``server``, the model with its additions."""
        return {"server": Submodel(self._cut, self._level, state.tensors, self.program(self._cut))}

    def _trained(self, state: State) -> Tensors:
        frozen = {*self._frozen}
        return {name: value for name, value in state.tensors.items() if name not in frozen}


def initial_seed(module: nn.Module) -> int:
    """The seed the module was built with; 0 where :func:`coordinator.models.catalog.build_model` did not build it."""
    return int(getattr(module, "initial_seed", 0))


def one_size(method: str, sizes: Sequence[float]) -> int:
    """The only number of ``levels``, of a method whose devices all hold the same.

    Raises:
        ConfigError: several, or not a whole number.
    """
    if len(sizes) != 1 or sizes[0] != int(sizes[0]):
        shown = ", ".join(f"{size:g}" for size in sizes)
        raise ConfigError(
            [
                f"$.method.levels: [{shown}] given, {method} takes one whole number: all its devices hold the same; "
                "sizes mix in fedlora"
            ]
        )
    return int(sizes[0])
