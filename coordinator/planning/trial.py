"""One step that a placement looked at, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from coordinator.planning.prediction import Prediction
from coordinator.submodels.values import Level
from export.forms.step_form import PLAIN, StepForm

Outcome = Literal[
    "fits", "too-large", "too-slow", "refused", "failed-before", "estimated-too-large", "estimated-too-slow"
]

_WORDS: dict[Outcome, str] = {
    "fits": "fits",
    "too-large": "too large",
    "too-slow": "too slow",
    "refused": "refused",
    "failed-before": "failed before",
    "estimated-too-large": "not exported, too large",
    "estimated-too-slow": "not exported, too slow",
}


@dataclass(frozen=True)
class Trial:
    """A level in a form on a runtime.

    Attributes:
        reason: why it was passed over, where its prediction does not say so.
        prediction: None where it was passed over before it was exported.
    """

    level: Level
    runtime: str
    form: StepForm
    outcome: Outcome
    reason: str = ""
    prediction: Prediction | None = None

    @property
    def words(self) -> str:
        """The outcome for people."""
        return _WORDS[self.outcome]

    def describe(self) -> str:
        """One line for people."""
        if self.prediction is not None:
            return f"{self.words}: {self.prediction.describe()}"
        form = "" if self.form == PLAIN else f", {self.form.name}"
        return f"{self.words}: {self.level.name} on {self.runtime}{form}: {self.reason}"

    def to_json(self) -> dict[str, Any]:
        """For ``plan --json``."""
        found = self.prediction
        values: dict[str, Any] = {
            "level": self.level.name,
            "runtime": self.runtime,
            "form": self.form.name,
            "outcome": self.outcome,
        }
        if self.reason:
            values["reason"] = self.reason
        if found is not None:
            values |= prediction_values(found)
        return values


def prediction_values(found: Prediction) -> dict[str, Any]:
    """A prediction's figures by name."""
    return {
        "predicted_peak_bytes": found.peak_bytes,
        "expected_peak_bytes": found.expected_bytes,
        "supervisor_bytes": found.supervisor_bytes,
        "trainer_idle_bytes": found.trainer_bytes,
        "manifest_growth_bytes": found.predicted_bytes,
        "growth_bytes": found.growth_bytes,
        "margin_bytes": found.margin_bytes,
        "correction": round(found.correction, 4),
        "threads": found.threads,
        "step_ms": None if found.step_ms is None else round(found.step_ms, 2),
        "growth_source": found.growth_source,
        "threads_source": found.threads_source,
    }
