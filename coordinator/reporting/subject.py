"""What reports, comparisons and plots are about: one run or simulation as values, wherever they were read.

Rounds count from 1 here, as people count. Nothing is measured or guessed: what is not known is None or empty.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Scores = Mapping[str, Mapping[str, float]]
"""Evaluated model -> metric -> value; ``server`` is the global model, the others are capacity levels."""

GLOBAL = "server"


def model_title(label: str) -> str:
    """What an evaluated model is called in legends and tables."""
    return "global model" if label == GLOBAL else f"level {label}"


@dataclass(frozen=True, kw_only=True)
class RoundFacts:
    """One committed round of training.

    Attributes:
        number: from 1.
        loss: mean training loss; None where it is no number.
        refused: device or state of work -> how many; what did not end in a report.
        planning_s, training_s, aggregating_s: parts of ``wall_s``; None where times were not kept.
        epsilon: spent by all rounds so far.
    """

    number: int
    reports: int
    loss: float | None
    scores: Scores
    bytes_up: int
    bytes_down: int
    wall_s: float | None
    reported: Mapping[str, int] = field(default_factory=dict)
    assigned: Mapping[str, int] = field(default_factory=dict)
    quarantined: int = 0
    over_budget: int = 0
    planning_s: float | None = None
    training_s: float | None = None
    aggregating_s: float | None = None
    simulated_s: float | None = None
    epsilon: float | None = None
    delta: float | None = None


@dataclass(frozen=True, kw_only=True)
class FailedAttempt:
    """A try at a round that was given up, and why."""

    number: int
    attempt: int
    why: str


@dataclass(frozen=True, kw_only=True)
class DeviceFacts:
    """One device; bytes of memory are of supervisor and trainer together, measured 0: it never reported.

    Attributes:
        budget_bytes: 0: no limit.
        level: of its newest work; empty: it never had any.
        traffic: payload from it and to it.
        problems: what went wrong, in words with counts.
    """

    device: str
    board: str = ""
    runtime: str = ""
    level: str = ""
    form: str = "plain"
    threads: int = 0
    budget_bytes: int = 0
    predicted_peak_bytes: int = 0
    measured_peak_bytes: int = 0
    step_ms: float | None = None
    reports: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    over_budget: int = 0
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A run.

    Attributes:
        folder: its directory, as it was given.
        state: ``finished``, ``running`` (also one that was stopped), or what the ledger says.
        config: the tables of its run file, every key spelled out.
        ranks: round -> layer -> effective rank, where the run asked for them.
        quarantined: (round, device, code) of each update that no round may count.
        trained_s: of all devices, from acceptance to report; None where it is not known.
        cpu_s: processor time of all trainings; joules: of the boards that count them. None where none says.
        summary: ``summary.json``; empty before the end.
        digests: what -> SHA-256: of the run file as the ledger has it, of the model after the last round, of files.
    """

    name: str
    folder: str
    is_simulated: bool
    state: str
    seed: int
    config_text: str
    rounds: tuple[RoundFacts, ...]
    devices: tuple[DeviceFacts, ...]
    failed: tuple[FailedAttempt, ...] = ()
    quarantined: tuple[tuple[int, str, str], ...] = ()
    ranks: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    trained_s: float | None = None
    cpu_s: float | None = None
    joules: float | None = None
    started_at: float | None = None
    ended_at: float | None = None
    summary: Mapping[str, Any] = field(default_factory=dict)
    wire_bytes: Mapping[str, int] = field(default_factory=dict)
    digests: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_finished(self) -> bool:
        """Whether nothing is left to do."""
        return self.state == "finished"

    @property
    def config(self) -> dict[str, Any]:
        """The tables of the run file; empty where it cannot be read."""
        try:
            return tomllib.loads(self.config_text)
        except tomllib.TOMLDecodeError:
            return {}

    def table(self, name: str) -> dict[str, Any]:
        """One table of the run file; empty without it."""
        found = self.config.get(name, {})
        return found if isinstance(found, dict) else {}

    @property
    def method(self) -> str:
        """By its name in the run file."""
        return str(self.table("method").get("name", "")) or "unknown"

    @property
    def model(self) -> str:
        """By its name in the run file."""
        return str(self.table("model").get("build", "")) or "unknown"

    @property
    def rounds_asked(self) -> int:
        """Rounds of training in the run file."""
        return int(self.table("federation").get("rounds", len(self.rounds)))

    @property
    def environment(self) -> Mapping[str, str]:
        """Name -> version or processor, as the coordinator wrote it at the end; empty before."""
        return self.summary.get("environment") or {}

    @property
    def metric(self) -> str:
        """The metric that the run is about: its task's own, ``accuracy``, or ``loss``."""
        if self.summary.get("metric"):
            return str(self.summary["metric"])
        for values in (r.scores[GLOBAL] for r in self.rounds if GLOBAL in r.scores):
            return "accuracy" if "accuracy" in values else next(iter(values), "accuracy")
        return "accuracy"

    @property
    def is_lower_better(self) -> bool:
        """Of the metric: losses and errors fall."""
        return any(word in self.metric for word in ("loss", "error", "mse", "mae", "rmse", "perplexity"))

    def curve(self, model: str, metric: str) -> list[tuple[float, float]]:
        """(round, value) of an evaluated model, where it was evaluated."""
        return [(r.number, r.scores[model][metric]) for r in self.rounds if metric in r.scores.get(model, {})]

    @property
    def evaluated_models(self) -> list[str]:
        """The global model first, then capacity levels in their order."""
        found = dict.fromkeys(label for r in self.rounds for label in r.scores)
        return [GLOBAL] * (GLOBAL in found) + [label for label in found if label != GLOBAL]

    @property
    def score(self) -> float | None:
        """Of the newest evaluated global model: the final one's where the run has ended."""
        if self.is_finished and self.summary:
            found = self.summary.get("score", self.summary.get("accuracy"))
            return None if found is None else float(found)
        points = self.curve(GLOBAL, self.metric)
        return points[-1][1] if points else None

    @property
    def wall_s(self) -> float:
        """Of the whole run, or of its rounds so far."""
        if self.summary.get("wall_s"):
            return float(self.summary["wall_s"])
        return sum(r.wall_s or 0.0 for r in self.rounds)

    @property
    def bytes_up(self) -> int:
        """Payload from all devices."""
        return sum(r.bytes_up for r in self.rounds)

    @property
    def bytes_down(self) -> int:
        """Payload to all devices."""
        return sum(r.bytes_down for r in self.rounds)
