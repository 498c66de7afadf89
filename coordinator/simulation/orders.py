"""Orders of simulated devices: what each is given, the work on it, and what it would report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
import numpy as np

from coordinator.aggregation.parts import FiniteTensors
from coordinator.config.run_config import RunConfig
from coordinator.methods.method import Method, local_work
from coordinator.planning.artifacts import Artifact
from coordinator.planning.capacity_levels import Capacities
from coordinator.reporting.progress import Progress
from coordinator.rounds.cluster_models import cluster_state
from coordinator.rounds.evaluation import Score
from coordinator.rounds.federation import RoundStage
from coordinator.rounds.work_order import build_order
from coordinator.simulation.local_training import Trained
from coordinator.simulation.own_layers import own_layers
from coordinator.simulation.own_variates import corrections, next_variates
from coordinator.simulation.record import Record
from coordinator.simulation.round_clock import DeviceRound, RoundClock
from coordinator.simulation.traffic import Traffic
from coordinator.simulation.workers import Refused, Work, Workers
from coordinator.submodels.record import Cut
from coordinator.submodels.values import DeviceProgram, State, Tensors, Update
from coordinator.tracking.timing import timed
from edge.contracts.errors import UpdateRejected
from edge.contracts.manifest import ArtifactManifest
from edge.contracts.packing import KEPT
from edge.contracts.plan import BlobRef, WorkOrder
from edge.contracts.report import TrainReport
from edge.contracts.tensor_file import check_trained
from profiles.device import DeviceProfile

_NO_BLOB = BlobRef("", 0, "raw", 0)


@dataclass(frozen=True)
class Simulation:
    """Everything that simulated devices need.

    Attributes:
        shares: device -> indices of its training examples.
        manifest: programs and tensors of a submodel's step.
        clock: simulated seconds of a device's round.
        evaluate: scores of every model the method evaluates, by label.
        has_statistics: whether a statistics round follows the last one, where cuts have a program for it.
        watchers: stages that only look, after the simulation's own.
        labels: of the training examples and of those held out.
        base: the size of the base file of a language model; what it is called is not its digest.
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
    watchers: tuple[RoundStage, ...] = ()
    labels: tuple[np.ndarray, np.ndarray] | None = None
    base: BlobRef | None = None


@dataclass
class Tally:
    """What the devices of one attempt at a round came to, beside what they report.

    Attributes:
        personal: device -> the layers that it keeps for itself.
        variates: device -> its control variates after the round.
    """

    simulated_s: float = 0.0
    refused: list[str] = field(default_factory=list)
    levels: Counter[str] = field(default_factory=Counter)
    personal: dict[str, Tensors] = field(default_factory=dict)
    variates: dict[str, Tensors] = field(default_factory=dict)


def work_of(
    simulation: Simulation, state: State, device: str, round_index: int, program: str, *, cut_round: int | None = None
) -> Work:
    """A device's order, submodel and examples; the cut is that of ``cut_round``, None: of this round."""
    config = simulation.config
    cluster = config.clusters.cluster(config.cohort.local_tags.get(device, ()))
    level = simulation.capacities.level(device, round_index)
    with timed("cut", device=device, level=level.name):
        submodel = simulation.method.cut(
            cluster_state(state, cluster),
            level,
            round_index=round_index if cut_round is None else cut_round,
            device=device,
            seed=config.federation.seed,
        )
    manifest = simulation.manifest(submodel.cut, submodel.program)
    order = build_order(
        config,
        config.federation.name,
        DeviceProfile(device=device),
        Artifact(manifest, _NO_BLOB),
        _NO_BLOB,
        submodel.program,
        round_index=round_index,
        attempt=0,
        program=program,
        peak_bytes=0,
        holds_out=True,
        cluster=cluster,
        work=local_work(simulation.method, state),
    )
    own = own_layers(state, device) | corrections(state, device, submodel, manifest)
    return Work(order, replace(submodel, tensors={**submodel.tensors, **own}), simulation.shares[device])


def train(
    simulation: Simulation,
    state: State,
    devices: Sequence[str],
    round_index: int,
    program: str,
    tally: Tally,
    *,
    cut_round: int | None = None,
) -> Iterator[tuple[Update, TrainReport] | Refused]:
    """What became of the order of each of ``devices``, in their order, as it is asked for; cuts as :func:`work_of`."""
    handed_out: dict[int, Work] = {}

    def work() -> Iterator[Work]:
        for number, device in enumerate(devices):
            handed_out[number] = work_of(simulation, state, device, round_index, program, cut_round=cut_round)
            yield handed_out[number]

    for number, result in enumerate(simulation.workers.train(work())):
        item = handed_out.pop(number)
        where = f"device {item.order.device}, round {item.order.round}"
        if isinstance(result, Trained):
            try:
                manifest = simulation.manifest(item.submodel.cut, item.submodel.program)
                mine = item.order.own_layers
                specs = [manifest.tensor(name.removesuffix(KEPT)) for name in (*item.order.upload, *mine)]
                check_trained(result.tensors, specs, where=where)
            except UpdateRejected as error:
                result = Refused(str(error))
        if isinstance(result, Refused):
            tally.refused.append(result.reason)
            simulation.progress.say(f"{where}: {result.reason}")
            yield result
            continue
        if item.order.own_layers:
            sent = {name: value for name, value in result.tensors.items() if name not in item.order.own_layers}
            # Copies: what stays for rounds must not keep the whole update's memory.
            tally.personal[item.order.device] = {name: np.array(result.tensors[name]) for name in item.order.own_layers}
            result = replace(result, tensors=sent)
        if simulation.config.training.scaffold and program == "train":
            tally.variates[item.order.device] = next_variates(item.submodel, item.order, result)
        update = Update(
            device=item.order.device,
            level=item.submodel.level,
            cut=item.submodel.cut,
            tensors=FiniteTensors(result.tensors),  # as of the check above
            num_examples=result.num_examples,
            labels=result.labels,
        )
        yield update, _count(simulation, state, item, result, tally)


def _count(simulation: Simulation, state: State, item: Work, result: Trained, tally: Tally) -> TrainReport:
    """Add a device's round to the round's figures and to the device's own; its report."""
    row = simulation.record.devices.setdefault(
        item.order.device, {"rounds": 0, "bytes_up": 0, "bytes_down": 0, "simulated_s": 0.0, "constants": ""}
    )
    manifest = simulation.manifest(item.submodel.cut, item.submodel.program)
    traffic = Traffic.of(
        item.submodel, item.order, result.tensors, held=row["constants"], base=simulation.base, manifest=manifest
    )
    seconds = simulation.clock(
        DeviceRound(state, item.submodel, result.outcome.steps, item.order.batch, traffic.down, traffic.up)
    )
    tally.simulated_s = max(tally.simulated_s, seconds)
    tally.levels[item.submodel.level.name] += 1
    row["constants"] = traffic.constants
    row["level"] = item.submodel.level.name
    row["examples"] = result.num_examples
    row["rounds"] += 1
    row["bytes_up"] += traffic.up
    row["bytes_down"] += traffic.down
    row["simulated_s"] += seconds
    return _report(item.order, result, traffic, seconds, manifest.runtime)


def _report(order: WorkOrder, result: Trained, traffic: Traffic, seconds: float, runtime: str) -> TrainReport:
    """What a device would report, as far as who stands in for it can say."""
    return TrainReport(
        assignment_id=order.assignment_id,
        device=order.device,
        round=order.round,
        num_examples=result.num_examples,
        steps=result.outcome.steps,
        loss=result.outcome.loss,
        metrics={},
        step_ms_p50=0.0,
        step_ms_p95=0.0,
        trainer_peak_bytes=0,
        supervisor_peak_bytes=0,
        trainer_idle_bytes=0,
        budget_bytes=0,
        over_budget=False,
        torch_loaded=True,
        runtime=runtime,
        bytes_down=traffic.down,
        bytes_up=traffic.up,
        update=_NO_BLOB,
        wall_s=seconds,
        labels=result.labels,
        evaluation=msgspec.UNSET if result.evaluation is None else result.evaluation,
    )
