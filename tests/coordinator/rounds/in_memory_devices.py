"""A driver of rounds in memory: devices that add their own number to every weight they are sent, at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from coordinator.ledger.ledger import Ledger
from coordinator.ledger.records import Assignment, RecordedUpdate
from coordinator.rounds.federation import Devices, Federation
from coordinator.rounds.round_clock import RoundClock
from coordinator.submodels.values import State, Update
from edge.contracts.messages import Hello
from edge.contracts.plan import assignment_id
from profiles.device import DeviceProfile
from tests.coordinator.ledger.test_rounds import report


class InMemoryDevices(Devices):
    """``steps``: device -> what it adds; its examples are its place in the order."""

    def __init__(self, ledger: Ledger, steps: dict[str, float]) -> None:
        self.clock = RoundClock()
        self._ledger, self._steps, self._ordered = ledger, steps, list[Assignment]()

    def present(self, *, usable_only: bool = True) -> list[Hello]:
        profiles = {device: DeviceProfile(device=device) for device in sorted(self._steps)}
        return [Hello(device=d, agent_version="", profile=p, runtimes={}, num_examples=1) for d, p in profiles.items()]

    def assign(
        self,
        federation: Federation,
        state: State,
        chosen: Sequence[Hello],
        round_index: int,
        attempt: int,
        program: str,
    ) -> tuple[list[Assignment], int]:
        self._state, self._level = state, federation.method.levels()[0]
        work = {"round": round_index, "attempt": attempt, "level": self._level.name, "cut": {}, "order": b""}
        ids = {h.device: assignment_id(federation.name, round_index, h.device, attempt) for h in chosen}
        no = {"artifact_digest": "0" * 64, "weights_digest": ""}
        return [Assignment(assignment_id=key, device=d, **work, **no) for d, key in ids.items()], len(chosen)

    def order(self, entries: Sequence[Assignment], deadline_s: Callable[[], float]) -> str:
        self._ordered = list(entries)
        return ""

    def wait(self, timeout_s: float) -> None:
        for place, entry in enumerate(self._ordered):
            done = replace(report(entry), num_examples=place + 1)
            self._ledger.updates.record(entry.assignment_id, update_digest=entry.assignment_id, size=0, report=done)

    def update(self, federation: Federation, recorded: RecordedUpdate) -> Update:
        device, added = recorded.assignment.device, self._steps[recorded.assignment.device]
        tensors = {name: value + value.dtype.type(added) for name, value in self._state.tensors.items()}
        submodel = federation.method.cut(self._state, self._level, round_index=0, device=device, seed=0)
        return Update(device, self._level, submodel.cut, tensors, recorded.report.num_examples)
