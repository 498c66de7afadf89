"""What tests of trackers share: a simulated run of seconds that is stopped once and goes on, and events by hand."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from coordinator.cli.simulate import begin
from coordinator.config.run_config import RunConfig
from coordinator.config.tracking import TrackingConfig
from coordinator.rounds.federation import Federation, RoundStage
from coordinator.run_file.loading import load_config_text
from coordinator.simulation.assembly import SimulationOptions, simulate
from coordinator.submodels.values import State
from coordinator.tracking.events import DeviceReported, RoundCommitted, RunEnded, RunStarted, Span
from coordinator.tracking.tracker import Place
from tests.coordinator.simulation.small_simulation import TEXT

METRICS = "metrics.jsonl"


def tracked_config(to: str, **keys: str) -> RunConfig:
    """The small simulation with a table ``[tracking]``; ``keys`` as they stand in the file."""
    lines = [f"to = {to}", *(f"{key.replace('_', '-')} = {value}" for key, value in keys.items())]
    return load_config_text(TEXT + "[tracking]\n" + "\n".join(lines) + "\n")


class StopsAfter(RoundStage):
    """Ends the process's part of the run, as Ctrl-C does, when a round is committed."""

    def __init__(self, rounds: int) -> None:
        self._rounds = rounds

    def committed(self, federation: Federation, state: State, entry: Mapping[str, Any]) -> None:
        """Raises KeyboardInterrupt after the last of them."""
        if state.round == self._rounds:
            raise KeyboardInterrupt


def run_twice(config: RunConfig, run_dir: Path, after: int = 1) -> None:
    """Simulate ``after`` rounds, be interrupted, and go on to the end."""
    run_dir.mkdir(parents=True)
    options = SimulationOptions(quiet=True, watchers=(StopsAfter(after),))
    try:
        simulate(config, run_dir, begin(config, run_dir), options)
    except KeyboardInterrupt:
        simulate(config, run_dir, begin(config, run_dir), SimulationOptions(quiet=True))
    else:
        raise AssertionError(f"not interrupted after {after} rounds")


def lines(run_dir: Path) -> dict[int, dict[str, Any]]:
    """Step -> the round's line of metrics.jsonl."""
    found = [json.loads(line) for line in (run_dir / METRICS).read_text().splitlines()]
    return {entry["round"] + 1: entry for entry in found if entry["event"] == "round"}


def place(folder: Path, *, say: Callable[[str], None] = lambda text: None, **config: Any) -> Place:
    """Where a tracker is opened in a test."""
    return Place(
        config=TrackingConfig(**config),
        experiment="small",
        name="first",
        run_dir=folder,
        remembered="",
        remember=lambda name: None,
        say=say,
    )


def started(folder: Path, done: int = 0) -> RunStarted:
    return RunStarted(
        federation="small",
        run_dir=folder,
        method="fedavg",
        model="mlp",
        settings={"federation.rounds": "3"},
        rounds=3,
        done=done,
        at_s=1000.0,
    )


def reported(device: str = "pi-07", step: int = 1) -> DeviceReported:
    figures = {
        "loss": 1.5,
        "step_ms_p50": 250.0,
        "trainer_peak_bytes": 30e6,
        "supervisor_peak_bytes": 20e6,
        "temperature_c": 61.0,
        "battery_percent": 40.0,
        "num_examples": 128.0,
        "budget_bytes": 160e6,
    }
    return DeviceReported(step=step, device=device, level="full", runtime="torch", figures=figures, at_s=1001.0)


def committed(step: int = 1, **others: Any) -> RoundCommitted:
    """A round of 4 s: plan 1, with a cut and an export in it, collect 2, aggregate and commit."""
    spans = (
        Span(name="round", inside="", began_s=1000.0, ended_s=1004.0, attributes={"round": step}),
        Span(name="plan", began_s=1000.0, ended_s=1001.0),
        Span(name="collect", began_s=1001.0, ended_s=1003.0),
        Span(name="aggregate", began_s=1003.0, ended_s=1003.5),
        Span(name="commit", began_s=1003.5, ended_s=1004.0),
        Span(name="cut", inside="plan", began_s=1000.1, ended_s=1000.2, attributes={"device": "pi-07"}),
        Span(name="export", inside="plan", began_s=1000.2, ended_s=1000.9),
        Span(
            name="assignment",
            inside="collect",
            began_s=1001.0,
            ended_s=1002.5,
            attributes={"device": "pi-07", "state": "reported"},
        ),
    )
    entry = {
        "round": step - 1,
        "attempt": 0,
        "program": "train",
        "reports": 3,
        "examples": 300,
        "train_loss": 0.75,
        "bytes_up": 1000,
        "bytes_down": 4000,
        "over_budget": 1,
        "torch_loaded": False,
        "runtimes": {"onnxruntime": 3},
        "wall_s": 3.5,
        "evaluation": {"server": {"accuracy": 0.5, "loss": 1.25}},
    }
    given: dict[str, Any] = {
        "entry": entry,
        "step": step,
        "unanswered": {"over-budget": 2},
        "spans": spans,
        "dropped": {"mlflow": 1},
    }
    return RoundCommitted(**{**given, "at_s": 1004.0, **others})


def ended() -> RunEnded:
    return RunEnded(outcome="finished", at_s=1005.0)
