"""The recorded courses of the setting nearest to a run, with the run's own costs, the cheapest first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from coordinator.advice.between import between
from coordinator.advice.device_cost import MethodCost, Spent
from coordinator.advice.features import Population
from coordinator.advice.nearest import FAR, differences, distance, nearest
from coordinator.advice.recorded import AdviceMap, Course, Setting
from coordinator.config.device_speed import DeviceSpeed
from coordinator.config.run_config import RunConfig
from coordinator.exporting.cut_exporter import dense_module
from edge.contracts.errors import ConfigError, PlanError

By = Literal["time", "bytes", "cpu"]
BY: tuple[By, ...] = get_args(By)

Outcome = Literal["fits", "too-large", "too-slow", "refused"]
"""``too-slow``: the target was not reached in the rounds that were recorded."""

SHARE = 0.95
"""Of the best accuracy recorded in the setting: the target where none is named."""


@dataclass(frozen=True)
class Option:
    """One method at one level.

    Attributes:
        memory_mb: predicted peak of a device; 0 where the method does not go with the model.
        rounds: until the target was reached in the setting; None: it was not.
        last: accuracy that is expected after the last recorded round.
    """

    course: Course
    outcome: Outcome
    memory_mb: float = 0.0
    rounds: int | None = None
    spent: Spent | None = None
    last: float = 0.0
    reason: str = ""

    def cost(self, by: By) -> float:
        """What ``by`` compares; infinite where the target was not reached."""
        if self.spent is None:
            return float("inf")
        return {"time": self.spent.time_s, "bytes": self.spent.bytes, "cpu": self.spent.cpu_s}[by]


@dataclass(frozen=True)
class Advice:
    """What to run, and why.

    Attributes:
        options: those that fit and reach the target, cheapest first; then the others.
        setting: the recorded one that is nearest to the run, or what is expected between two.
        recorded: that one, or the two.
        distance: of the run from the setting.
        thin: in what the run is far from the setting.
        budget_mb: of the smallest device; 0: none is given.
    """

    setting: Setting
    recorded: tuple[Setting, ...]
    target: float
    by: By
    budget_mb: float
    speed: DeviceSpeed
    devices: Population
    options: tuple[Option, ...]
    distance: float
    thin: tuple[str, ...]

    @property
    def is_far(self) -> bool:
        """Whether nothing recorded is like the run, so that the advice is a guess."""
        return self.distance >= FAR

    @property
    def choice(self) -> Option | None:
        """The first that fits and reaches the target; None: none does."""
        first = self.options[0] if self.options else None
        return first if first is not None and first.outcome == "fits" else None


def advise(
    config: RunConfig,
    devices: Population,
    found: AdviceMap,
    *,
    speed: DeviceSpeed,
    budget_mb: float = 0.0,
    target: float | None = None,
    by: By = "time",
) -> Advice:
    """The options of the setting in ``found`` that is nearest to ``config``, at the costs of ``config``'s own model.

    Args:
        target: an accuracy; by default :data:`SHARE` of the best that was recorded in the setting.

    Raises:
        ConfigError: a target outside (0, 1].
    """
    if target is not None and not 0 < target <= 1:
        raise ConfigError([f"--target: {target:g} given, an accuracy above 0 and up to 1 expected"])
    setting, recorded = between(found, nearest(found, devices.features), devices.features)
    aim = SHARE * setting.best() if target is None else target
    dense = dense_module(config)
    options = []
    for course in setting.courses:
        try:
            cost = MethodCost(config, dense, course.method, course.options)
            options.append(_option(course, cost, aim, budget_mb, speed, devices))
        except (ConfigError, PlanError) as error:
            options.append(Option(course, "refused", last=course.expected()[-1], reason=str(error)))
    order = {"fits": 0, "too-slow": 1, "too-large": 2, "refused": 3}
    options.sort(key=lambda option: (order[option.outcome], option.cost(by), -option.last))
    thin = tuple(differences(devices.features, setting))
    away = distance(devices.features, setting.features)
    return Advice(setting, recorded, aim, by, budget_mb, speed, devices, tuple(options), away, thin)


def _option(
    course: Course, cost: MethodCost, target: float, budget_mb: float, speed: DeviceSpeed, devices: Population
) -> Option:
    rounds = course.rounds_to(target)
    memory = cost.memory_mb(rounds or course.rounds[-1])
    spent = cost.spent(rounds, speed, devices) if rounds is not None else None
    outcome: Outcome = "too-large" if 0 < budget_mb < memory else "too-slow" if rounds is None else "fits"
    return Option(course, outcome, memory, rounds, spent, course.expected()[-1])
