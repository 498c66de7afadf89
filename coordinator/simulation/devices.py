"""Devices that torch stands in for: the driver of simulated rounds.

Everything a device would be told is made by the same functions from the same streams; what is missing is the export,
the broker and the devices' processes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
import numpy as np

from coordinator.aggregation.parts import FiniteTensors
from coordinator.config.run_config import RunConfig
from coordinator.device_scores.held_out import EVAL
from coordinator.ledger.ledger import Ledger
from coordinator.ledger.records import Assignment, RecordedUpdate
from coordinator.methods.method import Method, local_work, shape_for
from coordinator.planning.artifacts import Artifact
from coordinator.planning.capacity_levels import Capacities
from coordinator.reporting.progress import Progress
from coordinator.rounds.cluster_models import cluster_state
from coordinator.rounds.evaluation import Score
from coordinator.rounds.federation import Devices, Federation, RoundStage
from coordinator.rounds.round_clock import RoundClock as TimeLeft
from coordinator.rounds.work_order import build_order
from coordinator.simulation.local_training import Trained
from coordinator.simulation.own_layers import own_layers
from coordinator.simulation.own_variates import corrections, next_variates
from coordinator.simulation.record import Record
from coordinator.simulation.round_clock import DeviceRound, RoundClock
from coordinator.simulation.spool import Spool
from coordinator.simulation.traffic import Traffic
from coordinator.simulation.workers import Refused, Work, Workers
from coordinator.submodels.record import Cut
from coordinator.submodels.values import DeviceProgram, State, Tensors, Update
from coordinator.tracking.timing import timed
from edge.contracts.errors import UpdateRejected
from edge.contracts.evaluation import ABILITY
from edge.contracts.fixed_sample import ABILITY as SAMPLES
from edge.contracts.manifest import ArtifactManifest
from edge.contracts.messages import Hello
from edge.contracts.packing import KEPT
from edge.contracts.plan import BlobRef, WorkOrder, assignment_id
from edge.contracts.report import TrainReport
from edge.contracts.tensor_file import check_trained
from profiles.device import DeviceProfile

_NO_BLOB = BlobRef("", 0, "raw", 0)
_NO_ARTIFACT = "0" * 64
RUNTIME = "torch"


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


class SimulatedDevices(Devices):
    """All of them are always here; those with work do all of it when they are waited for.

    Args:
        spool: where updates are kept until they are summed.

    Attributes:
        tally: of the attempt that is under way.
    """

    def __init__(self, simulation: Simulation, ledger: Ledger, spool: Spool) -> None:
        self.clock = TimeLeft()
        self.tally = Tally()
        self._simulation = simulation
        self._ledger = ledger
        self._spool = spool
        tags = simulation.config.cohort.local_tags
        self._hellos = [_hello(d, len(indices), tags.get(d, ())) for d, indices in sorted(simulation.shares.items())]
        self._ordered: list[Assignment] = []

    def present(self, *, usable_only: bool = True) -> list[Hello]:
        """As :meth:`Devices.present`."""
        return list(self._hellos)

    def assign(
        self,
        federation: Federation,
        state: State,
        chosen: Sequence[Hello],
        round_index: int,
        attempt: int,
        program: str,
    ) -> tuple[list[Assignment], int]:
        """As :meth:`Devices.assign`; submodels are cut, and orders written, when a worker is free."""
        self.tally, self._state, self._program = Tally(), state, program
        self._spool.drop()
        if program == "stats":
            chosen = [hello for hello in chosen if self._has_program(program, state, hello.device, round_index)]
        name = federation.config.federation.name
        assignments = [
            Assignment(
                assignment_id=assignment_id(name, round_index, hello.device, attempt),
                round=round_index,
                attempt=attempt,
                device=hello.device,
                level=self._simulation.capacities.level(hello.device, round_index).name,
                cut={},
                artifact_digest=_NO_ARTIFACT,
                weights_digest="",
                order=b"",
            )
            for hello in chosen
        ]
        return assignments, len(chosen)

    def order(self, entries: Sequence[Assignment], deadline_s: Callable[[], float]) -> str:
        """As :meth:`Devices.order`."""
        self._ordered = list(entries)
        return ""

    def wait(self, timeout_s: float) -> None:
        """Train every device that has an order; what they report is in the ledger then."""
        entries, self._ordered = self._ordered, []
        names = [entry.device for entry in entries]
        outcomes = train(self._simulation, self._state, names, entries[0].round, self._program, self.tally)
        reports = []
        for entry, outcome in zip(entries, outcomes, strict=True):
            if isinstance(outcome, Refused):
                self._ledger.assignments.move(entry.assignment_id, "refused", code="refused", reason=outcome.reason)
                continue
            update, report = outcome
            self._spool.put(entry.assignment_id, update)
            reports.append(report)
        self._ledger.updates.record_all(reports)

    def update(self, federation: Federation, recorded: RecordedUpdate) -> Update:
        """As :meth:`Devices.update`; each is given once, in a run with clusters as often as it is asked for."""
        give = self._spool.look if self._simulation.config.clusters.layers else self._spool.take
        return give(recorded.assignment.assignment_id)

    def gathers_statistics(self, federation: Federation, state: State) -> bool:
        """As :meth:`Devices.gathers_statistics`."""
        simulation, last = self._simulation, self._simulation.record.done
        if not simulation.has_statistics or last != federation.training_rounds:
            return False
        return any(self._has_program("stats", state, device, last) for device in simulation.shares)

    def _has_program(self, program: str, state: State, device: str, round_index: int) -> bool:
        """Whether the cut that ``device`` has in a round comes with ``program``."""
        simulation, method = self._simulation, self._simulation.method
        level = simulation.capacities.level(device, round_index)
        at, seed = cut_round(simulation, round_index, program), simulation.config.federation.seed
        shape = shape_for(method, level, state, round_index=at, device=device, seed=seed)
        programs = simulation.manifest(shape, method.program(shape)).programs
        return any(found.name == program for found in programs)

    def scoring_round(self, federation: Federation) -> int | None:
        """As :meth:`Devices.scoring_round`."""
        record = self._simulation.record
        return None if record.rounds and record.rounds[-1]["program"] == EVAL else record.done


def _hello(device: str, examples: int, tags: tuple[str, ...]) -> Hello:
    profile = DeviceProfile(device=device)
    return Hello(
        device=device,
        agent_version="",
        profile=profile,
        runtimes={RUNTIME: ""},
        num_examples=examples,
        abilities=(ABILITY, SAMPLES),
        tags=tags or msgspec.UNSET,
    )


def cut_round(simulation: Simulation, round_index: int, program: str) -> int:
    """As :meth:`Federation.cut_round`, by what the simulation has recorded."""
    if program == "train":
        return round_index
    trained = [entry for entry in simulation.record.rounds if entry["program"] == "train"]
    return min(round_index, len(trained) - 1)


def work_of(simulation: Simulation, state: State, device: str, round_index: int, program: str) -> Work:
    """A device's order, submodel and examples."""
    config = simulation.config
    cluster = config.clusters.cluster(config.cohort.local_tags.get(device, ()))
    level = simulation.capacities.level(device, round_index)
    with timed("cut", device=device, level=level.name):
        submodel = simulation.method.cut(
            cluster_state(state, cluster),
            level,
            round_index=cut_round(simulation, round_index, program),
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
    simulation: Simulation, state: State, devices: Sequence[str], round_index: int, program: str, tally: Tally
) -> Iterator[tuple[Update, TrainReport] | Refused]:
    """What became of the order of each of ``devices``, in their order, as it is asked for."""
    handed_out: dict[int, Work] = {}

    def work() -> Iterator[Work]:
        for number, device in enumerate(devices):
            handed_out[number] = work_of(simulation, state, device, round_index, program)
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
    return _report(item.order, result, traffic, seconds)


def _report(order: WorkOrder, result: Trained, traffic: Traffic, seconds: float) -> TrainReport:
    """What a device would report, as far as torch in its place can say."""
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
        runtime=RUNTIME,
        bytes_down=traffic.down,
        bytes_up=traffic.up,
        update=_NO_BLOB,
        wall_s=seconds,
        labels=result.labels,
        evaluation=msgspec.UNSET if result.evaluation is None else result.evaluation,
    )
