"""Devices that torch stands in for: the driver of simulated rounds.

Everything a device would be told is made by the same functions from the same streams; what is missing is the export,
the broker and the devices' processes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from coordinator.device_scores.held_out import EVAL
from coordinator.ledger.ledger import Ledger
from coordinator.ledger.records import Assignment, RecordedUpdate
from coordinator.methods.method import shape_for
from coordinator.rounds.federation import Devices, Federation
from coordinator.rounds.round_clock import RoundClock as TimeLeft
from coordinator.simulation.orders import Simulation, Tally, train
from coordinator.simulation.spool import Spool
from coordinator.simulation.workers import Refused
from coordinator.submodels.values import State, Update
from edge.contracts.evaluation import ABILITY
from edge.contracts.fixed_sample import ABILITY as SAMPLES
from edge.contracts.messages import Hello
from edge.contracts.plan import assignment_id
from profiles.device import DeviceProfile

_NO_ARTIFACT = "0" * 64


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
        tags, runtime = simulation.config.cohort.local_tags, simulation.config.simulation.runtime
        shares = sorted(simulation.shares.items())
        self._hellos = [_hello(d, len(indices), tags.get(d, ()), runtime) for d, indices in shares]
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
        self._cut_round = federation.cut_round(round_index, program)
        self._spool.drop()
        if program == "stats":
            chosen = [hello for hello in chosen if self._gathers(state, hello.device, round_index, self._cut_round)]
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
        round_index, program = entries[0].round, self._program
        outcomes = train(
            self._simulation, self._state, names, round_index, program, self.tally, cut_round=self._cut_round
        )
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
        cut_round = federation.cut_round(last, "stats")
        return any(self._gathers(state, device, last, cut_round) for device in simulation.shares)

    def _gathers(self, state: State, device: str, round_index: int, cut_round: int) -> bool:
        """Whether the cut that ``device`` has in a statistics round comes with a program for it."""
        simulation, method = self._simulation, self._simulation.method
        level, seed = simulation.capacities.level(device, round_index), simulation.config.federation.seed
        shape = shape_for(method, level, state, round_index=cut_round, device=device, seed=seed)
        programs = simulation.manifest(shape, method.program(shape)).programs
        return any(found.name == "stats" for found in programs)

    def scoring_round(self, federation: Federation) -> int | None:
        """As :meth:`Devices.scoring_round`."""
        record = self._simulation.record
        return None if record.rounds and record.rounds[-1]["program"] == EVAL else record.done


def _hello(device: str, examples: int, tags: tuple[str, ...], runtime: str) -> Hello:
    profile = DeviceProfile(device=device)
    return Hello(
        device=device,
        agent_version="",
        profile=profile,
        runtimes={runtime: ""},
        num_examples=examples,
        abilities=(ABILITY, SAMPLES),
        tags=tags or msgspec.UNSET,
    )
