"""Which runtime and which cut a device gets: the run's first runtime that it has, and the largest level that fits.

A level fits when its predicted process peak is within the device's budget.

The prediction is ``supervisor idle + trainer idle + artifact peak``, the artifact's part scaled by what devices
measured for the same artifact. Headroom is taken on the artifact's part only: idle figures are measured on the device.
Choosing threads and micro-batches is left to later planners; building cuts to :mod:`coordinator.submodels`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from coordinator.methods.method import DeviceProgram, Level, Method
from edge.contracts.errors import PlanError
from edge.contracts.manifest import Cost
from profiles.device import DeviceProfile

MB = 2**20
"""Memory is given and shown in megabytes of 2^20 bytes, as systems report it; traffic in those of 10^6."""


@dataclass(frozen=True)
class Prediction:
    """What one level is expected to need on one device.

    Attributes:
        runtime: what the level's artifact is for.
        idle_bytes: supervisor plus trainer with its runtime loaded, measured on the device.
        artifact_bytes: predicted peak above idle, before correction.
        correction: measured over predicted for this artifact, 1.0 when nothing was measured.
        peak_bytes: idle plus corrected artifact part plus headroom; what is held against the budget.
    """

    level: Level
    runtime: str
    idle_bytes: int
    artifact_bytes: int
    correction: float
    peak_bytes: int

    def describe(self) -> str:
        """One line for ``plan --explain``."""
        measured = "" if self.correction == 1.0 else f" x {self.correction:.2f} measured"
        return (
            f"{self.level.name}: {self.peak_bytes / MB:.1f} MB = idle {self.idle_bytes / MB:.1f} "
            f"+ step {self.artifact_bytes / MB:.1f}{measured} + headroom, on {self.runtime}"
        )


@dataclass(frozen=True)
class Placement:
    """The level a device gets, and every level tried before it.

    Attributes:
        chosen: the prediction of the level taken.
        tried: predictions of the larger levels that did not fit, largest first.
    """

    device: str
    budget_bytes: int
    chosen: Prediction
    tried: tuple[Prediction, ...]

    @property
    def level(self) -> Level:
        """The level taken."""
        return self.chosen.level

    @property
    def runtime(self) -> str:
        """What the device trains with."""
        return self.chosen.runtime


def choose_runtime(profile: DeviceProfile, allowed: Sequence[str]) -> str:
    """The first of ``allowed`` that the device has measured its idle size for, and so can start.

    Raises:
        PlanError: it has none of them; the message names what it has and what the run allows.
    """
    has = sorted(name for name, idle_bytes in profile.trainer_idle_bytes.items() if idle_bytes > 0)
    for name in allowed:
        if name in has:
            return name
    raise PlanError(
        f"device {profile.device}: has {', '.join(has) or 'no runtime'}, the run allows {', '.join(allowed)}; "
        "install one of those on the device (apportion agent --runtime NAME), or add its own to runtime.name"
    )


def require_able(
    method: Method, runtime: str, unable: Callable[[DeviceProgram, str], Sequence[str]], *, seed: int
) -> None:
    """Nothing when ``runtime`` can carry what ``method`` asks of its devices, at every level.

    Args:
        unable: what a device program needs that no artifact for a runtime can carry, in words.

    Raises:
        PlanError: naming method, runtime and what is missing.
    """
    for level in method.levels():
        program = method.program(method.cut_shape(level, round_index=0, device="", seed=seed))
        if lacking := unable(program, runtime):
            raise PlanError(
                f"method {method.name}, level {level.name}, needs {' and '.join(lacking)}, which runtime {runtime} "
                "cannot carry; use runtime onnxruntime, which carries every method"
            )


def predict(
    profile: DeviceProfile, runtime: str, level: Level, cost: Cost, *, headroom: float, correction: float = 1.0
) -> Prediction:
    """What ``level`` with ``cost`` needs on the device of ``profile``.

    Args:
        headroom: fraction of the artifact's part kept free, 0.05 for five percent.

    Raises:
        PlanError: the device has not measured its idle size for ``runtime``.
    """
    trainer_idle = profile.trainer_idle_bytes.get(runtime, 0)
    if trainer_idle <= 0 or profile.supervisor_idle_bytes <= 0:
        known = ", ".join(sorted(profile.trainer_idle_bytes)) or "none"
        raise PlanError(
            f"device {profile.device}: no idle size for runtime '{runtime}' in its profile (has {known}); "
            "install that runtime on the device and let it say hello again"
        )
    idle = profile.supervisor_idle_bytes + trainer_idle
    step = cost.predicted_peak_bytes * correction
    return Prediction(
        level=level,
        runtime=runtime,
        idle_bytes=idle,
        artifact_bytes=cost.predicted_peak_bytes,
        correction=correction,
        peak_bytes=idle + round(step * (1.0 + headroom)),
    )


def place(
    profile: DeviceProfile,
    runtime: str,
    ladder: Sequence[Level],
    cost_of: Callable[[Level], Cost],
    *,
    headroom: float,
    correction_of: Callable[[Level], float] = lambda level: 1.0,
) -> Placement:
    """The largest level of ``ladder`` (given largest first) that fits under the device's ceiling; 0 fits everything.

    The ceiling is the budget, or less where a control group or the memory itself allows less.

    Args:
        cost_of: cost of the device's artifact at a level; called until one fits, so that nothing is exported in vain.
        correction_of: measured over predicted for a level, 1.0 when nothing was measured.

    Raises:
        PlanError: no level fits; the message holds the smallest level's figures.
    """
    tried: list[Prediction] = []
    ceiling = profile.ceiling_bytes
    for level in ladder:
        cost = cost_of(level)
        prediction = predict(profile, runtime, level, cost, headroom=headroom, correction=correction_of(level))
        if ceiling == 0 or prediction.peak_bytes <= ceiling:
            return Placement(profile.device, profile.budget_bytes, prediction, tuple(tried))
        tried.append(prediction)
    smallest = tried[-1].describe() if tried else "the method has no levels"
    limits = {profile.ram_bytes: "memory", profile.memory_limit_bytes: "memory limit", profile.budget_bytes: "budget"}
    limit = limits[ceiling]
    raise PlanError(
        f"device {profile.device}: {limit} {ceiling / MB:.1f} MB fits no cut; the smallest is {smallest}; "
        f"raise the device's {limit} or add a smaller level to the method"
    )


def correction_from(measured_peak_bytes: int, idle_bytes: int, artifact_bytes: int) -> float:
    """Measured over predicted for the artifact's part, kept within [0.5, 3] so that one odd reading cannot rule."""
    if artifact_bytes <= 0 or measured_peak_bytes <= idle_bytes:
        return 1.0
    return min(3.0, max(0.5, (measured_peak_bytes - idle_bytes) / artifact_bytes))
