"""Devices that are elsewhere: what they are given is exported, and what they send is in the ledger and the blobs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from coordinator.device_scores.held_out import EVAL
from coordinator.ledger.records import Assignment, RecordedUpdate
from coordinator.messaging.cohort import Cohort, Member
from coordinator.messaging.inbox import Inbox
from coordinator.reporting.progress import megabytes
from coordinator.rounds.batch_norm_statistics import gathered_by_artifacts
from coordinator.rounds.federation import Devices, Federation
from coordinator.rounds.final_scores import program_of
from coordinator.rounds.orders import orders_for
from coordinator.rounds.participants import stored_update
from coordinator.rounds.placement import export_certain, export_on_arrival
from coordinator.rounds.round_clock import RoundClock
from coordinator.submodels.values import State, Update
from edge.contracts.messages import Ack, Error, Hello
from edge.contracts.plan import WorkOrder, read_order
from edge.serving.publisher import Publisher
from edge.serving.traffic import Traffic

STALE_ROUND = "stale-round"
"""The code of an acknowledgement that tells a device to forget work the round goes on without."""


class RemoteDevices(Devices):
    """What holds however they are reached."""

    def __init__(self, cohort: Cohort, clock: RoundClock) -> None:
        self.cohort = cohort
        self.clock = clock

    def present(self, *, usable_only: bool = True) -> list[Hello]:
        """As :meth:`Devices.present`."""
        return self.cohort.present(usable_only=usable_only)

    def gather(self, federation: Federation, round_index: int) -> list[Hello]:
        """As :meth:`Devices.gather`; what those that are here will be given is exported meanwhile.

        Raises:
            DeadlineExpired: too few came; what :func:`export_certain` raises.
        """
        export_certain(federation)
        cohort = federation.config.cohort
        return self.cohort.wait_for(
            cohort.size,
            cohort.join_timeout_s,
            least=cohort.min_reports,
            meanwhile=export_on_arrival(federation),
            eligible=lambda devices: federation.stages.eligible(federation, devices, round_index),
        )

    def member(self, device: str) -> Member | None:
        """As :meth:`Devices.member`."""
        return self.cohort.member(device)

    def assign(
        self,
        federation: Federation,
        state: State,
        chosen: Sequence[Hello],
        round_index: int,
        attempt: int,
        program: str,
    ) -> tuple[list[Assignment], int]:
        """As :meth:`Devices.assign`."""
        return orders_for(federation, state, chosen, round_index, attempt, program)

    def order(self, entries: Sequence[Assignment], deadline_s: Callable[[], float]) -> str:
        """As :meth:`Devices.order`."""
        volume = 0
        for entry in entries:
            order = read_order(entry.order)
            volume += order.weights.size
            self.send(order, deadline_s=deadline_s())
        return megabytes(volume)

    def send(self, order: WorkOrder, *, deadline_s: float) -> None:
        """Have a device hear of ``order``."""
        raise NotImplementedError

    def update(self, federation: Federation, recorded: RecordedUpdate) -> Update:
        """As :meth:`Devices.update`."""
        return stored_update(federation, recorded)

    def gathers_statistics(self, federation: Federation, state: State) -> bool:
        """As :meth:`Devices.gathers_statistics`."""
        return gathered_by_artifacts(federation)

    def scoring_round(self, federation: Federation) -> int | None:
        """As :meth:`Devices.scoring_round`."""
        committed = [r for r in federation.ledger.rounds.all() if r.state == "committed"]
        if any(program_of(federation, entry) == EVAL for entry in committed):
            return None
        return committed[-1].round + 1 if committed else 0

    def notify(self) -> None:
        """Wakes :meth:`wait`."""
        raise NotImplementedError


class MqttDevices(RemoteDevices):
    """Devices that an inbox hears and a publisher speaks to."""

    def __init__(self, cohort: Cohort, publisher: Publisher, inbox: Inbox, clock: RoundClock) -> None:
        super().__init__(cohort, clock)
        self.publisher = publisher
        self.inbox = inbox

    def send(self, order: WorkOrder, *, deadline_s: float) -> None:
        """As :meth:`RemoteDevices.send`; a device that is away gets it when it says hello."""
        self.publisher.order(order, deadline_s=deadline_s)

    def announce(self, device: str) -> None:
        """As :meth:`Devices.announce`."""
        self.inbox.announce(device)

    def wait(self, timeout_s: float) -> None:
        """As :meth:`Devices.wait`."""
        self.inbox.wait(timeout_s)

    def notify(self) -> None:
        """As :meth:`RemoteDevices.notify`."""
        self.inbox.notify()

    def dismiss(self, entry: Assignment, why: str) -> None:
        """As :meth:`Devices.dismiss`."""
        self.publisher.ack(entry.device, Ack(entry.assignment_id, False, STALE_ROUND, why))

    def tell(self, device: str, error: Error) -> None:
        """As :meth:`Devices.tell`."""
        self.publisher.error(device, error)

    def at_rest(self) -> AbstractContextManager[object]:
        """As :meth:`Devices.at_rest`."""
        return self.inbox.at_rest()

    def traffic(self) -> list[Traffic]:
        """As :meth:`Devices.traffic`, of those that have said hello: a name alone leaves no row."""
        return [row for row in self.publisher.account.take() if self.cohort.member(row.device) is not None]
