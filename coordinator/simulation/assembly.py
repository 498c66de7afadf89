"""Puts a simulation together from a configuration and a run directory, and runs it to its end."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from torch import nn

from coordinator.config.canonical import canonical_toml
from coordinator.config.run_config import RunConfig
from coordinator.data.datasets import Dataset
from coordinator.distillation.proxy import open_proxy
from coordinator.exporting.base_file import base_size
from coordinator.exporting.cut_exporter import CutExporter, dense_module, run_input_spec
from coordinator.exporting.run_data import load_run_data
from coordinator.exporting.task_metric import check_metric
from coordinator.local_devices.data_folders import device_shares
from coordinator.methods.method import Method
from coordinator.planning.capacity_levels import Capacities, device_names
from coordinator.reporting.progress import Progress
from coordinator.rounds.evaluation import Score
from coordinator.rounds.evaluators import AnyEvaluator, run_evaluator
from coordinator.rounds.federation import RoundStage
from coordinator.rounds.tracked_rounds import TrackedRounds
from coordinator.run_file.checks import method_of_run
from coordinator.simulation.local_training import SimulatedData
from coordinator.simulation.orders import Simulation
from coordinator.simulation.record import Record, write_record
from coordinator.simulation.results import finish
from coordinator.simulation.round_clock import round_clock
from coordinator.simulation.runtime_artifacts import check_runtime
from coordinator.simulation.simulator import run_rounds
from coordinator.simulation.worker import ARTIFACTS, local_training
from coordinator.simulation.workers import ThisProcess, WorkerProcesses, Workers
from coordinator.submodels.costs import cut_costs
from coordinator.submodels.record import Cut, cut_digest
from coordinator.submodels.values import Level, State, Submodel
from coordinator.submodels.width import shape_of_cut
from coordinator.tracking.tracked_run import check_trackers, tracked_run
from edge.contracts.errors import ConfigError

if TYPE_CHECKING:
    from coordinator.simulation.ray_workers import RayWorkers


Engine = Literal["processes", "ray"]
"""Whose processes train."""


@dataclass(frozen=True)
class SimulationOptions:
    """What a command line adds to a configuration: where and by how many processes it is computed.

    Attributes:
        workers: processes that train; of a cluster the most.
        engine: ``processes`` of this machine, or ``ray``: of the cluster at ``address``, or of one started here.
        watchers: stages that only look; they come after the simulation's own.
    """

    workers: int = 1
    device: str = "cpu"
    quiet: bool = False
    watchers: tuple[RoundStage, ...] = ()
    engine: Engine = "processes"
    address: str = ""


def simulate(config: RunConfig, run_dir: Path, record: Record, options: SimulationOptions) -> dict[str, Any]:
    """Simulate from the last committed round of ``record`` to the end; the values of ``summary.json``.

    ``run_dir`` holds ``config.toml`` already.

    Raises:
        ConfigError: the configuration does not suit its method, model or data.
    """
    check_trackers(config)
    with contextlib.ExitStack() as stack:
        simulation = stack.enter_context(open_simulation(config, run_dir, record, options))
        tracked = stack.enter_context(tracked_run(config, run_dir, simulation.progress.say))
        if tracked.is_listening:
            stage = TrackedRounds(tracked, lambda federation: record.rounds)
            simulation = replace(simulation, watchers=(stage, *simulation.watchers))
        state = run_rounds(simulation)
        tracked.summary = finish(run_dir, config, state, record, {"workers": options.workers, "device": options.device})
        record.finished = True
        write_record(run_dir, record)
    return dict(tracked.summary)


@contextlib.contextmanager
def open_simulation(
    config: RunConfig, run_dir: Path, record: Record, options: SimulationOptions
) -> Iterator[Simulation]:
    """The simulation, its workers waiting while the context is open; as :func:`simulate`."""
    if config.privacy.clip_norm:
        why = "a simulation neither clips nor adds noise, and its scores would be another run's"
        raise ConfigError([f"$.privacy.clip-norm: {config.privacy.clip_norm:g} given; {why}; use apportion run"])
    if config.aggregation.mode != "synchronous":
        why = "a simulation's rounds are synchronous: its devices finish when its clock says, not when they do"
        raise ConfigError([f'$.aggregation.mode: "{config.aggregation.mode}" given; {why}; use apportion run'])
    check_runtime(config, options.device)
    with _worker_processes(config, run_dir, options) as processes:
        progress = Progress(
            stream=None if options.quiet else sys.stderr, metrics=run_dir / "metrics.jsonl", form=config.tracking.logs
        )
        dense = dense_module(config)
        method = method_of_run(config, dense)
        check_metric(config, dense)
        spec = run_input_spec(config)

        exporter = CutExporter(config, dense)

        def growth_of(level: Level, runtime: str) -> float:
            shape = _shape(method, level)
            return exporter.growth_bytes(shape, method.program(shape), runtime)

        capacities = Capacities(config, method.levels(), growth_of)
        clock = round_clock(config.simulation, method, dense, _macs(dense, config))
        dataset = load_run_data(config)
        dataset = open_proxy(method, config, dataset, spec, device=options.device)
        data = SimulatedData(dataset.x_train, dataset.y_train, dataset.x_test, dataset.y_test)
        training = local_training(config, data, options.device, artifacts=run_dir / ARTIFACTS)
        workers: Workers = ThisProcess(training, len(data.y_test)) if processes is None else processes
        if processes is not None:
            processes.give(data)
        progress.say(
            f"{config.cohort.local_devices} simulated devices, {config.cohort.size} in a round, "
            f"{options.workers} process(es){_where(options)} on {options.device}; run directory {run_dir}"
        )
        yield Simulation(
            config=config,
            run_dir=run_dir,
            method=method,
            shares=_shares(config, dataset),
            capacities=capacities,
            manifest=training.manifest,
            clock=clock,
            workers=workers,
            evaluate=_evaluation(method, workers, run_evaluator(config, dataset.x_test, dataset.y_test)),
            has_statistics=config.evaluation.norm == "static",
            progress=progress,
            record=record,
            labels=(dataset.y_train, dataset.y_test),
            base=base_size(config, dense),
            watchers=options.watchers,
        )


def _where(options: SimulationOptions) -> str:
    return "" if options.engine == "processes" else " of a Ray cluster, at most,"


def _shape(method: Method, level: Level) -> Cut:
    return method.cut_shape(level, round_index=0, device="", seed=0)


def _shares(config: RunConfig, dataset: Dataset) -> dict[str, np.ndarray]:
    """Device -> its training examples; the first devices' parts when the data is dealt into more."""
    names = device_names(config.cohort)
    return dict(zip(names, device_shares(config, dataset, max(len(names), config.data.devices)), strict=False))


@contextlib.contextmanager
def _worker_processes(
    config: RunConfig, run_dir: Path, options: SimulationOptions
) -> Iterator[WorkerProcesses | RayWorkers | None]:
    """The processes that train, which start at once; None where this one does."""
    if options.engine == "ray":
        from coordinator.simulation.ray_workers import RayWorkers

        text, batch = canonical_toml(config), config.evaluation.batch
        with RayWorkers(options.workers, text, options.address, options.device, batch=batch) as trainers:
            yield trainers
        return
    if options.workers == 1:
        yield None
        return
    run_file, batch = run_dir / "config.toml", config.evaluation.batch
    with (
        tempfile.TemporaryDirectory(prefix="apportion-simulate-") as folder,
        WorkerProcesses(options.workers, run_file, Path(folder), options.device, batch=batch) as workers,
    ):
        yield workers


def _macs(dense: nn.Module, config: RunConfig) -> Callable[[Cut], int]:
    """Forward multiply-accumulates of a cut, per example; counted once for each shape."""
    spec = run_input_spec(config)
    known: dict[str, int] = {}

    def macs(cut: Cut) -> int:
        digest = cut_digest(shape_of_cut(dense, cut))
        if digest not in known:
            known[digest] = cut_costs(dense, cut, spec).macs
        return known[digest]

    return macs


def _evaluation(method: Method, workers: Workers, evaluator: AnyEvaluator) -> Callable[[State], dict[str, Score]]:
    def evaluate(state: State) -> dict[str, Score]:
        models = method.eval_models(state)
        distinct = _distinct(models.values())
        outputs = dict(zip(distinct, workers.outputs(distinct.values()), strict=True))
        scores = {key: evaluator.score_of(values) for key, values in outputs.items()}
        return {label: scores[_identity(model)] for label, model in models.items()}

    return evaluate


def _distinct(models: Iterable[Submodel]) -> Mapping[tuple[str, int], Submodel]:
    """Each model once: the whole model often has several labels."""
    return {_identity(model): model for model in models}


def _identity(model: Submodel) -> tuple[str, int]:
    return cut_digest(model.cut), id(model.tensors)
