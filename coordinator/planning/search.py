"""The trials of one placement: which steps are exported and looked at, and which are passed over for nothing."""

from __future__ import annotations

from collections.abc import Sequence

from coordinator.planning.estimate import Estimate
from coordinator.planning.history import DeviceHistory
from coordinator.planning.prediction import MB, Prediction, idle_bytes, predict, timing
from coordinator.planning.requests import Requests
from coordinator.planning.steps import PlannedSteps
from coordinator.planning.trial import Trial
from coordinator.submodels.values import Level
from edge.contracts.errors import ExportRefused, ParityError, PlanError
from export.forms.step_form import PLAIN, StepForm
from profiles.device import DeviceProfile


class NothingFits(PlanError):
    """No level fits; ``tried`` says what was."""

    def __init__(self, message: str, tried: Sequence[Trial]) -> None:
        super().__init__(message)
        self.tried = tuple(tried)


class Search:
    """The trials of one placement; ``tried`` has them in order.

    Args:
        forms: to try; empty: those of the requests.
        tried: what earlier searches of the placement tried, appended to.
    """

    def __init__(
        self,
        profile: DeviceProfile,
        runtimes: tuple[str, ...],
        steps: PlannedSteps,
        requests: Requests,
        history: DeviceHistory,
        forms: tuple[StepForm, ...] = (),
        tried: list[Trial] | None = None,
    ) -> None:
        self._profile, self._runtimes = profile, runtimes
        self._steps, self._requests, self._history = steps, requests, history
        self._ceiling = profile.ceiling_bytes
        self._refusals: list[ExportRefused | ParityError] = []
        self._unseen: set[tuple[Level, str, StepForm]] = set()
        self._all_forms = forms or requests.forms
        self.tried: list[Trial] = [] if tried is None else tried

    def fitting(self, level: Level) -> Prediction | None:
        """The cheapest form of ``level`` that fits, on the first runtime that has one."""
        unable = 0
        for runtime in self._runtimes:
            for form in self._forms(level, runtime):
                trial = self._try(level, runtime, form)
                if not self._is_told(trial):
                    self.tried.append(trial)
                if trial.outcome == "fits":
                    return trial.prediction
                if trial.outcome == "refused" and form.of_step == PLAIN:
                    unable += 1
                    break
                if trial.outcome == "too-slow":
                    break  # what follows is slower
        if unable == len(self._runtimes):
            # A smaller cut in its place would hide that the model, or an exporter, is broken.
            raise self._refusals[-1]
        return None

    def is_out_of_reach(self, smallest: Level) -> bool:
        """Whether it is known without an export that no form of the smallest level fits, and so none of any level; its
        trials are told then."""
        trials = []
        for runtime in self._runtimes:
            for form in self._all_forms:
                estimate = self._steps.estimate(smallest, runtime, form)
                if estimate is None or not estimate.is_exact or not self._is_hopeless(smallest, runtime, form):
                    return False
                found = self._least(smallest, runtime, form, estimate)
                trials.append(Trial(smallest, runtime, form, "estimated-too-large", _about(estimate), found))
        self.tried += trials
        return True

    def second_look(self, level: Level, *, faster_than: Prediction | None = None) -> Prediction | None:
        """As :meth:`fitting`, where a step of ``level`` was not exported and may fit by what is known now."""
        for runtime in self._runtimes:
            for form in self._forms(level, runtime):
                if faster_than is not None and (runtime, form) == (faster_than.runtime, faster_than.form):
                    return None
                if (level, runtime, form) not in self._unseen or self._is_hopeless(level, runtime, form):
                    continue
                trial = self._try(level, runtime, form)
                self.tried.append(trial)
                if trial.outcome == "fits":
                    return trial.prediction
        return None

    def last_resort(self, level: Level) -> Prediction | None:
        """The smallest level's thriftiest form, where it was passed over unseen: an estimate turns nobody away."""
        for runtime in self._runtimes:
            unseen = [form for form in self._forms(level, runtime) if (level, runtime, form) in self._unseen]
            for form in sorted(unseen, key=lambda form: self._estimated(level, runtime, form)):
                trial = self._try(level, runtime, form, unseen=True)
                if not self._is_told(trial):
                    self.tried.append(trial)
                if trial.outcome == "fits":
                    return trial.prediction
                if trial.outcome != "refused":
                    break  # if the thriftiest is too large, so are the others
        return None

    def _estimated(self, level: Level, runtime: str, form: StepForm) -> int:
        estimate = self._steps.estimate(level, runtime, form)
        return 0 if estimate is None else estimate.growth_bytes

    def _is_told(self, trial: Trial) -> bool:
        """Whether another form of the step was refused for the same reason."""
        return trial.outcome == "refused" and any(
            (known.level, known.runtime, known.reason) == (trial.level, trial.runtime, trial.reason)
            for known in self.tried
        )

    def _forms(self, level: Level, runtime: str) -> list[StepForm]:
        """The forms to try, those that should take the least time first."""
        forms = self._all_forms
        plain = self._steps.plain_cost(level, runtime, forms[0])
        if plain is None or not self._profile.step_lines.get(runtime):
            return list(forms)
        times = {form: timing(self._profile, runtime, plain, form, threads=self._requests.threads) for form in forms}
        return sorted(forms, key=lambda form: (times[form].step_ms or 0.0, forms.index(form)))

    def _try(self, level: Level, runtime: str, form: StepForm, *, unseen: bool = False) -> Trial:
        steps, requests = self._steps, self._requests
        if self._history.setbacks and (reason := self._history.setback(steps.key(level, runtime, form))):
            return Trial(level, runtime, form, "failed-before", reason)
        if not unseen and (passed := self._not_worth_an_export(level, runtime, form)):
            if passed.prediction is None:
                self._unseen.add((level, runtime, form))
            return passed
        if reason := steps.refused(level, runtime, form):
            return Trial(level, runtime, form, "refused", reason)
        self._unseen.discard((level, runtime, form))
        try:
            found = predicted(self._profile, level, runtime, form, steps, requests, self._history)
        except (ExportRefused, ParityError) as error:
            self._refusals.append(error)
            return Trial(level, runtime, form, "refused", str(error))
        if self._ceiling and found.peak_bytes > self._ceiling:
            return Trial(level, runtime, form, "too-large", "", found)
        if requests.max_step_s and found.step_ms is not None and found.step_ms > 1000 * requests.max_step_s:
            return Trial(level, runtime, form, "too-slow", "", found)
        return Trial(level, runtime, form, "fits", "", found)

    def _not_worth_an_export(self, level: Level, runtime: str, form: StepForm) -> Trial | None:
        """Why a step that was not exported is passed over by what is known for nothing; None where it may fit."""
        if self._steps.is_known(level, runtime, form):
            return None
        if self._is_hopeless(level, runtime, form):
            estimate = self._steps.estimate(level, runtime, form)
            assert estimate is not None
            found = self._least(level, runtime, form, estimate) if estimate.is_exact else None
            return Trial(level, runtime, form, "estimated-too-large", _about(estimate), found)
        plain = self._steps.plain_cost(level, runtime, form)
        if plain is not None and self._requests.max_step_s:
            told = timing(self._profile, runtime, plain, form, threads=self._requests.threads).step_ms
            if told is not None and told > 1250 * self._requests.max_step_s:  # live bytes are an estimate here
                return Trial(level, runtime, form, "estimated-too-slow", f"about {told:.0f} ms a step")
        return None

    def _is_hopeless(self, level: Level, runtime: str, form: StepForm) -> bool:
        """Whether even the least that the step is estimated at is above the ceiling."""
        estimate = self._steps.estimate(level, runtime, form)
        if estimate is None or not self._ceiling:
            return False
        return self._least(level, runtime, form, estimate).peak_bytes > self._ceiling

    def _least(self, level: Level, runtime: str, form: StepForm, estimate: Estimate) -> Prediction:
        return predict(
            self._profile,
            runtime,
            level,
            estimate.least_bytes,
            headroom=self._requests.headroom,
            form=form,
            correction=self._history.usual_correction(runtime),
        )

    def nothing_fits(self) -> Exception:
        """What to raise when no trial fits."""
        profile, predicted = self._profile, [trial.prediction for trial in self.tried if trial.prediction is not None]
        for runtime in self._runtimes:
            idle_bytes(profile, runtime)  # says so where it is not known
        if not predicted and self._refusals:
            return self._refusals[-1]
        if any(trial.outcome in ("too-slow", "estimated-too-slow") for trial in self.tried) and not any(
            trial.outcome == "too-large" and trial.level == self.tried[-1].level for trial in self.tried
        ):
            return self._nothing_is_fast_enough(predicted)
        least = min(predicted, key=lambda p: p.peak_bytes, default=None)
        smallest = least.describe() if least is not None else "the method has no levels"
        too_much = f", {(least.peak_bytes - self._ceiling) / MB:.1f} MB too much" if least is not None else ""
        limits = {
            profile.ram_bytes: "memory",
            profile.memory_limit_bytes: "memory limit",
            profile.budget_bytes: "budget",
        }
        limit = limits.get(self._ceiling, "limit")
        before = [trial for trial in self.tried if trial.outcome == "failed-before"]
        failed = f"; {before[-1].describe()}" if before else ""
        return NothingFits(
            f"device {profile.device}: {limit} {self._ceiling / MB:.1f} MB fits no cut; the smallest is {smallest}"
            f"{too_much}{failed}; raise the device's {limit} or add a smaller level to the method",
            self.tried,
        )

    def _nothing_is_fast_enough(self, predicted: Sequence[Prediction]) -> NothingFits:
        timed = [p for p in predicted if p.step_ms is not None]
        best = min(timed, key=lambda p: p.step_ms or 0.0).describe() if timed else "of none that was exported"
        return NothingFits(
            f"device {self._profile.device}: no cut takes at most {self._requests.max_step_s:g} s a step and fits; the "
            f"fastest is {best}; raise planner.max-step-s or add a smaller level to the method",
            self.tried,
        )


def predicted(
    profile: DeviceProfile,
    level: Level,
    runtime: str,
    form: StepForm,
    steps: PlannedSteps,
    requests: Requests,
    history: DeviceHistory,
) -> Prediction:
    """What a step needs on a device, exported now if it was not before; raises ExportRefused or ParityError."""
    cost = steps.cost(level, runtime, form)
    return predict(
        profile,
        runtime,
        level,
        cost.predicted_peak_bytes,
        headroom=requests.headroom,
        form=form,
        correction=history.correction(runtime, steps.key(level, runtime, form)),
        timing=timing(profile, runtime, steps.plain_cost(level, runtime, form) or cost, form, threads=requests.threads),
        graph_bytes=cost.graph_bytes,
    )


def _about(estimate: Estimate) -> str:
    return f"its step needs about {estimate.growth_bytes / MB:.0f} MB"
