"""Which cut a device gets, for which runtime, in which form: the largest level that fits, in its cheapest form.

For every level, largest first, and every runtime of the run that the device has, the step's forms are tried from the
fastest on: plain, by micro-batches, with recomputation, both. The first that fits the device's memory, and the time a
step may take, is the placement: so a larger level in a slower form comes before a smaller level, and the run's order of
runtimes decides where several carry the same level. Of a language model, where no level fits, all of them are tried
again with the run's shorter windows; and its base is the first of the run's precisions that the device's storage has
room for. What a step needs is :mod:`coordinator.planning.prediction`'s; what
is not worth an export :mod:`coordinator.planning.estimate`'s; what devices
measured :mod:`coordinator.planning.history`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from coordinator.methods.method import Method
from coordinator.planning.history import NOTHING, DeviceHistory
from coordinator.planning.prediction import MB, Prediction
from coordinator.planning.requests import Requests
from coordinator.planning.search import NothingFits, Search, predicted
from coordinator.planning.steps import PlannedSteps
from coordinator.planning.trial import Trial
from coordinator.submodels.values import DeviceProgram, Level
from edge.contracts.errors import PlanError
from edge.runtimes import DEFAULT
from export.forms.step_form import StepForm
from profiles.device import DeviceProfile

__all__ = ["MB", "NothingFits", "Placement", "choose_runtimes", "keep", "place", "require_able"]


@dataclass(frozen=True)
class Placement:
    """What a device gets, and everything that was tried before it.

    Attributes:
        budget_bytes: as the owner set it, 0 for none; ``ceiling_bytes`` what was held against, 0 for no limit.
        tried: in order, the chosen one last.
    """

    device: str
    budget_bytes: int
    ceiling_bytes: int
    chosen: Prediction
    tried: tuple[Trial, ...]

    @property
    def level(self) -> Level:
        """The level taken."""
        return self.chosen.level

    @property
    def runtime(self) -> str:
        """What the device trains with."""
        return self.chosen.runtime

    @property
    def form(self) -> StepForm:
        """How its step is carried out."""
        return self.chosen.form


def choose_runtimes(profile: DeviceProfile, allowed: Sequence[str]) -> tuple[str, ...]:
    """Those of ``allowed`` that the device has measured its idle size for, and so can start; never empty.

    Raises:
        PlanError: it has none of them; the message names what it has and what the run allows.
    """
    has = sorted(name for name, size in profile.trainer_idle_bytes.items() if size > 0)
    if found := tuple(name for name in allowed if name in has):
        return found
    raise PlanError(
        f"device {profile.device}: has {', '.join(has) or 'no runtime'}, the run allows {', '.join(allowed)}; "
        "install one of those on the device (apportion agent --runtime NAME), or add its own to runtime.name"
    )


def require_able(
    method: Method, runtime: str, unable: Callable[[DeviceProgram, str], Sequence[str]], *, seed: int
) -> None:
    """Check that ``runtime`` can carry what ``method`` asks of its devices, at every level.

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
                f"cannot carry; use runtime {DEFAULT}, which carries every method"
            )


def place(
    profile: DeviceProfile,
    runtimes: Sequence[str],
    ladder: Sequence[Level],
    steps: PlannedSteps,
    requests: Requests,
    history: DeviceHistory = NOTHING,
) -> Placement:
    """The largest level of ``ladder`` (given largest first) that fits under the device's ceiling; 0 fits everything.

    The ceiling is the budget, or less where a control group or the memory itself allows less.

    Args:
        runtimes: those the device may train with, in order of preference.

    Raises:
        PlanError: a runtime's idle size is not known; as :class:`NothingFits`, no level fits: the message holds the
            smallest level's figures. Also ExportRefused and ParityError, where no runtime can train any level tried.
    """
    tried: list[Trial] = []
    searches = [
        Search(profile, tuple(runtimes), steps, requests, history, forms, tried) for forms in requests.searches(profile)
    ]
    for search in searches:
        if found := _found(search, ladder, is_last=search is searches[-1]):
            return Placement(profile.device, profile.budget_bytes, profile.ceiling_bytes, found, tuple(tried))
    raise searches[-1].nothing_fits()


def _found(search: Search, ladder: Sequence[Level], *, is_last: bool) -> Prediction | None:
    """The largest level of ``ladder`` that fits in one of the forms of ``search``."""
    if ladder and search.is_out_of_reach(ladder[-1]):
        return None
    passed: list[Level] = []
    for level in ladder:
        found = search.fitting(level)
        if found is None:
            passed.append(level)
            continue
        # What was exported meanwhile tells more of what was passed over unseen: larger levels, and faster forms.
        for again in (*passed, level):
            if better := search.second_look(again, faster_than=found if again == level else None):
                return better
        return found
    for larger in passed:
        if found := search.second_look(larger):
            return found
    return search.last_resort(ladder[-1]) if ladder and is_last else None


def keep(
    profile: DeviceProfile,
    level: Level,
    runtime: str,
    form: StepForm,
    steps: PlannedSteps,
    requests: Requests,
    history: DeviceHistory = NOTHING,
) -> Placement:
    """What the device was given before, once more."""
    found = predicted(profile, level, runtime, form, steps, requests, history)
    tried = (Trial(level, runtime, form, "fits", "", found),)
    return Placement(profile.device, profile.budget_bytes, profile.ceiling_bytes, found, tried)
