"""A simulated round, in the order of :mod:`coordinator.round`: plan, cut, train, aggregate, refresh, commit.

Everything a device would be told is made by the same functions from the same streams; what is missing is the export,
the broker and the devices' processes. Nothing else is in this file.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coordinator.aggregation.choice import chosen_rule
from coordinator.artifacts import Artifact
from coordinator.cohort import select
from coordinator.configuration import RunConfig
from coordinator.evaluation import Score
from coordinator.methods.method import DeviceProgram, Method, ObservesScores, SelectsDevices, State, Update
from coordinator.packed_tensors import masks_of
from coordinator.progress import Progress
from coordinator.pruning.masks import density
from coordinator.round_metrics import effective_ranks
from coordinator.simulation.capacity import Capacities
from coordinator.simulation.local_training import Trained
from coordinator.simulation.record import Record, commit_state, restored_state
from coordinator.simulation.results import describe_round
from coordinator.simulation.round_clock import DeviceRound, RoundClock
from coordinator.simulation.traffic import Traffic
from coordinator.simulation.workers import Refused, Work, Workers
from coordinator.statistics import state_with_statistics
from coordinator.submodels.record import Cut
from coordinator.work_orders import build_order
from edge.contracts.errors import PlanError, UpdateRejected
from edge.contracts.manifest import ArtifactManifest
from edge.contracts.packing import KEPT
from edge.contracts.plan import BlobRef
from edge.contracts.tensor_file import check_trained
from profiles.device import DeviceProfile

if TYPE_CHECKING:
    import numpy as np

_NO_BLOB = BlobRef("", 0, "raw", 0)


@dataclass(frozen=True)
class Simulation:
    """Everything a simulated round needs.

    Attributes:
        shares: device -> indices of its training examples.
        manifest: programs and tensors of a submodel's step.
        clock: simulated seconds of a device's round.
        evaluate: scores of every model the method evaluates, by label.
        has_statistics: whether a statistics round follows the last one.
    """

    config: RunConfig
    run_dir: Path
    method: Method
    shares: dict[str, np.ndarray]
    capacities: Capacities
    manifest: Callable[[Cut, DeviceProgram], ArtifactManifest]
    clock: RoundClock
    workers: Workers
    evaluate: Callable[[State], dict[str, Score]]
    has_statistics: bool
    progress: Progress
    record: Record


@dataclass
class Tally:
    """What the devices of one round came to; filled while their updates are aggregated."""

    reports: int = 0
    examples: int = 0
    loss: float = 0.0
    bytes_up: int = 0
    bytes_down: int = 0
    simulated_s: float = 0.0
    refused: list[str] = field(default_factory=list)
    levels: Counter[str] = field(default_factory=Counter)


def run_rounds(simulation: Simulation) -> State:
    """Run every round that is not on disk yet, then the statistics round; the final state."""
    rounds = simulation.config.federation.rounds
    state = restored_state(simulation.run_dir, simulation.record, rounds=rounds) or simulation.method.init()
    while simulation.record.done < rounds:
        state = run_round(simulation, state, program="train")
    if simulation.has_statistics and simulation.record.done == rounds:
        state = run_round(simulation, state, program="stats")
    return state


def run_round(simulation: Simulation, state: State, *, program: str) -> State:
    """One round; the new state."""
    started = time.monotonic()
    tally = Tally()
    devices = plan(simulation, state)
    new_state = aggregate(simulation, state, program, train(simulation, state, devices, program, tally))
    check_enough(simulation, devices, tally)
    if program == "train":
        new_state = simulation.method.refresh(new_state)
    return commit(simulation, new_state, program, tally, started)


# plan


def plan(simulation: Simulation, state: State) -> list[str]:
    """The devices of the round, as a run with all of them present selects them in its first attempt."""
    config, method, devices = simulation.config, simulation.method, list(simulation.shares)
    return select(
        list(method.select(state, devices)) if isinstance(method, SelectsDevices) else devices,
        config.cohort.size + config.cohort.over_selection,
        seed=config.federation.seed,
        round_index=simulation.record.done,
        attempt=0,
    )


# cut


def work_of(simulation: Simulation, state: State, device: str, program: str) -> Work:
    """A device's order, submodel and examples."""
    config, round_index = simulation.config, simulation.record.done
    submodel = simulation.method.cut(
        state,
        simulation.capacities.level(device, round_index),
        round_index=round_index,
        device=device,
        seed=config.federation.seed,
    )
    order = build_order(
        config,
        config.federation.name,
        DeviceProfile(device=device),
        Artifact(simulation.manifest(submodel.cut, submodel.program), _NO_BLOB),
        _NO_BLOB,
        submodel.program,
        round_index=round_index,
        attempt=0,
        program=program,
        peak_bytes=0,
    )
    return Work(order, submodel, simulation.shares[device])


# train


def train(simulation: Simulation, state: State, devices: list[str], program: str, tally: Tally) -> Iterator[Update]:
    """The updates of the devices that could carry out their orders, in device-id order, as they are asked for."""
    handed_out: dict[int, Work] = {}

    def work() -> Iterator[Work]:
        for number, device in enumerate(devices):
            handed_out[number] = work_of(simulation, state, device, program)
            yield handed_out[number]

    for number, result in enumerate(simulation.workers.train(work())):
        item = handed_out.pop(number)
        where = f"device {item.order.device}, round {item.order.round}"
        if isinstance(result, Trained):
            try:
                manifest = simulation.manifest(item.submodel.cut, item.submodel.program)
                specs = [manifest.tensor(name.removesuffix(KEPT)) for name in item.order.upload]
                check_trained(result.tensors, specs, where=where)
            except UpdateRejected as error:
                result = Refused(str(error))
        if isinstance(result, Refused):
            tally.refused.append(result.reason)
            simulation.progress.say(f"{where}: {result.reason}")
            continue
        _count(simulation, state, item, result, tally)
        yield Update(
            device=item.order.device,
            level=item.submodel.level,
            cut=item.submodel.cut,
            tensors=result.tensors,
            num_examples=result.num_examples,
            labels=result.labels,
        )


def _count(simulation: Simulation, state: State, item: Work, result: Trained, tally: Tally) -> None:
    """Add a device's round to the round's figures and to the device's own."""
    row = simulation.record.devices.setdefault(
        item.order.device, {"rounds": 0, "bytes_up": 0, "bytes_down": 0, "simulated_s": 0.0, "constants": ""}
    )
    manifest = simulation.manifest(item.submodel.cut, item.submodel.program)
    traffic = Traffic.of(item.submodel, item.order, result.tensors, held=row["constants"], manifest=manifest)
    seconds = simulation.clock(
        DeviceRound(state, item.submodel, result.outcome.steps, item.order.batch, traffic.down, traffic.up)
    )
    tally.reports += 1
    tally.examples += result.num_examples
    tally.loss += result.outcome.loss * result.num_examples
    tally.bytes_down += traffic.down
    tally.bytes_up += traffic.up
    tally.simulated_s = max(tally.simulated_s, seconds)
    tally.levels[item.submodel.level.name] += 1
    row["constants"] = traffic.constants
    row["level"] = item.submodel.level.name
    row["examples"] = result.num_examples
    row["rounds"] += 1
    row["bytes_up"] += traffic.up
    row["bytes_down"] += traffic.down
    row["simulated_s"] += seconds


# aggregate


def aggregate(simulation: Simulation, state: State, program: str, updates: Iterator[Update]) -> State:
    """The state after the updates, summed one at a time in device-id order."""
    if program == "stats":
        return state_with_statistics(simulation.method, state, updates)
    rule = chosen_rule(simulation.config.aggregation, simulation.run_dir)
    return replace(simulation.method.aggregate(state, updates, rule), round=state.round + 1)


def check_enough(simulation: Simulation, devices: list[str], tally: Tally) -> None:
    """Nothing when as many devices reported as the run asks for; another attempt would end the same.

    Raises:
        PlanError: too few; the message holds the first reasons.
    """
    needed = simulation.config.cohort.min_reports
    if tally.reports < needed:
        raise PlanError(
            f"round {simulation.record.done + 1}: {tally.reports} of {len(devices)} devices reported, "
            f"cohort.min-reports is {needed}: " + "; ".join(tally.refused[:3])
        )


# commit


def commit(simulation: Simulation, state: State, program: str, tally: Tally, started: float) -> State:
    """Evaluate, put the state on disk, and say what the round came to."""
    config, record = simulation.config, simulation.record
    number, rounds, every = record.done + 1, config.federation.rounds, config.evaluation.every
    metrics: dict[str, Any] = {
        "reports": tally.reports,
        "examples": tally.examples,
        "train_loss": tally.loss / tally.examples if tally.examples else float("nan"),
        "bytes_up": tally.bytes_up,
        "bytes_down": tally.bytes_down,
        "simulated_s": tally.simulated_s,
        "refused": len(tally.refused),
        "levels": dict(sorted(tally.levels.items())),
    }
    if program == "train":
        metrics |= effective_ranks(simulation.method, state)
    if masks := masks_of(state.extra):
        metrics["density"] = density(masks)
    if number >= rounds or (every and number % every == 0):
        scores = simulation.evaluate(state)
        metrics["evaluation"] = {label: {"accuracy": s.accuracy, "loss": s.loss} for label, s in scores.items()}
        if program == "train" and isinstance(simulation.method, ObservesScores):
            state = simulation.method.observe(state, {label: s.accuracy for label, s in scores.items()})
    metrics["wall_s"] = round(time.monotonic() - started, 3)
    record.rounds.append({"round": record.done, "program": program, **metrics})
    record.wall_s += metrics["wall_s"]
    record.done += 1
    commit_state(simulation.run_dir, record, state)
    simulation.progress.record("round", **record.rounds[-1])
    simulation.progress.round_line(number - 1, rounds, describe_round(metrics, program))
    return state
