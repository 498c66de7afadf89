"""One shard's devices, served by the process that holds the shard's lease: heard, ordered, answered, recorded.

Everything here is the shard's own: a connection to the broker, a connection to the ledger with the shard's fence, an
inbox. Nothing of it knows of rounds but what the ledger says; who holds which shard is
:mod:`coordinator.shards.leases`'s.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from coordinator.audit_log import actors
from coordinator.blobs.blob_store import BlobStore
from coordinator.ledger.ledger import Ledger
from coordinator.ledger.records import AssignmentState
from coordinator.messaging.block_lane import BlockLane, Paced
from coordinator.messaging.event_queue import EventQueue
from coordinator.messaging.inbox import REVOKED, Inbox
from coordinator.messaging.message_loop import MessageLoop
from coordinator.rounds.collecting import REANNOUNCE_S
from coordinator.rounds.crash_points import known_only
from coordinator.rounds.remote_devices import STALE_ROUND
from coordinator.shards.cohort import WrittenCohort
from coordinator.shards.leases import HeldShard
from coordinator.shards.membership import shard_lease, shard_of
from edge.contracts import topics
from edge.contracts.envelope import Envelope
from edge.contracts.errors import LedgerError, MessageRejected
from edge.contracts.messages import Ack
from edge.contracts.plan import read_order
from edge.serving.dispatch import Handler
from edge.serving.publisher import Publisher
from edge.serving.traffic import publication_bytes
from edge.transport.base import Connected, Event, Qos, Received, Transport

WRITE_S = 2.0
"""How often heartbeats and counted bytes are written to the ledger."""


class Connection(Transport, Paced, Protocol):
    """A connection whose subscriptions grow with the devices that come."""

    def subscribe(self, patterns: Sequence[str]) -> None:
        """Asks for further topics; returns at once."""


class Identity(AbstractContextManager["Identity"], Protocol):
    """Checks messages and answers those about certificates; nothing where a run has no identity."""

    handlers: Mapping[str, Handler]

    @property
    def check(self) -> Callable[[str, Envelope], None] | None:
        """Raises for a message that may not be used; None where all may."""

    def shutting_out(self, inbox: ShardHandler) -> Identity:
        """The same, at work for ``inbox``."""


@dataclass(frozen=True)
class Served:
    """What every shard of a process is served with.

    Attributes:
        open_ledger: a connection of its own to the run's ledger.
        connect: a connection to the broker for the shard of that number, with a subscription and further ones; not
            started.
        publisher: what sends over a connection.
        identity: what a shard does with the run's identity; its own context, while the shard is served.
        uploads_at_once: of one shard, see :class:`~coordinator.messaging.inbox.Inbox`.
    """

    federation: str
    shards: int
    runtimes: tuple[str, ...]
    open_ledger: Callable[[], Ledger]
    blobs: BlobStore
    connect: Callable[[int, str, Sequence[str]], Connection]
    publisher: Callable[[Transport], Publisher]
    identity: Callable[[Publisher], Identity]
    uploads_at_once: int
    on_point: Callable[[str], None]
    say: Callable[[str], None]
    record: Callable[..., None]


class HeldConnection:
    """Publishes while the shard is held, and drops everything afterwards: nobody is answered without the lease."""

    def __init__(self, connection: Connection, may_send: Callable[[], bool]) -> None:
        self._connection = connection
        self._may_send = may_send

    def start(self, deliver: Callable[[Event], None]) -> None:
        """As :meth:`edge.transport.base.Transport.start`."""
        self._connection.start(deliver)

    def publish(self, topic: str, payload: bytes, *, qos: Qos = 1) -> None:
        """As :meth:`edge.transport.base.Transport.publish`, or nothing."""
        if self._may_send():
            self._connection.publish(topic, payload, qos=qos)

    def stop(self, farewell: tuple[str, bytes] | None = None) -> None:
        """As :meth:`edge.transport.base.Transport.stop`."""
        self._connection.stop(farewell)

    def wait_for_room(self, most_bytes: int, timeout_s: float) -> bool:
        """As :meth:`coordinator.messaging.block_lane.Paced.wait_for_room`."""
        return self._connection.wait_for_room(most_bytes, timeout_s)


class ShardHandler:
    """Serves one shard from its making to :meth:`close`.

    Args:
        remaining_s: seconds left in the open round, for orders that are sent again.

    Attributes:
        shard: its lease.

    Raises:
        BrokerUnreachable: as :meth:`edge.transport.base.Transport.start`; also AccessDenied.
        LedgerError: the ledger does not answer.
    """

    def __init__(self, served: Served, shard: HeldShard, remaining_s: Callable[[], float]) -> None:
        self._served = served
        self.shard = shard
        self._stack = contextlib.ExitStack()
        self._stopping = threading.Lock()
        self._told: dict[str, tuple[str, float]] = {}
        self._heard: set[str] = set()
        self._of_others: Counter[str] = Counter()
        self._carried: Counter[str] = Counter()
        self._is_connected = False
        self._write_at = 0.0
        self._remaining_s = remaining_s
        with contextlib.ExitStack() as stack:
            self._open(stack)
            self._stack = stack.pop_all()

    def _open(self, stack: contextlib.ExitStack) -> None:
        served, shard, name = self._served, self.shard, self._served.federation
        self._ledger = stack.enter_context(served.open_ledger())
        self._ledger.leases.fence(shard_lease(shard.number), shard.owner, shard.term)
        self._ledger.audit_log.act_as(actors.coordinator(shard.owner))
        self._cohort = WrittenCohort(served.runtimes)
        known = [p for p in self._ledger.presences.all() if self._is_ours(p.device)]
        self._cohort.know(known)
        self._heard |= {presence.device for presence in known}
        filters = [topics.coordinator_device_filter(name, device) for device in sorted(self._heard)]
        self._connection = served.connect(shard.number, topics.kind_filter(name, "hello"), filters)
        gate = HeldConnection(self._connection, shard.is_held)
        self.publisher = served.publisher(gate)
        stack.callback(self.publisher.close)
        identity = served.identity(self.publisher)
        lane = stack.enter_context(BlockLane(self.publisher.block, gate))
        self._events = EventQueue(self.publisher.budgets)
        self._inbox = Inbox(
            name,
            ledger=self._ledger,
            blobs=served.blobs,
            cohort=self._cohort,
            publisher=self.publisher,
            remaining_s=self._remaining_s,
            say=served.say,
            on_point=self._held_at(known_only(served.on_point)),
            check=identity.check,
            uploads_at_once=served.uploads_at_once,
            more_handlers=identity.handlers,
            give=lane.ask,
        )
        stack.enter_context(identity.shutting_out(self))
        stack.enter_context(MessageLoop(self._inbox, self._events, may_answer=shard.is_held))
        stack.callback(self._disconnect)
        shard.on_lost = self._disconnect
        self._connection.start(self._arrived)

    def _held_at(self, on_point: Callable[[str], None]) -> Callable[[str], None]:
        def passed(name: str) -> None:
            self.shard.check()
            on_point(name)

        return passed

    def _is_ours(self, device: str) -> bool:
        return shard_of(device, self._served.shards) == self.shard.number

    def _disconnect(self) -> None:
        with self._stopping:
            self._connection.stop()

    def _arrived(self, event: Event) -> None:
        """From the connection's thread: what is of this shard goes to the handler, and nothing else."""
        if isinstance(event, Connected) and not self._is_connected:
            self._is_connected = True  # who is there is asked once for all shards that this process takes
            return
        if isinstance(event, Received):
            try:
                _, device, kind = topics.parse_up(event.topic)
            except MessageRejected:
                return
            if not self._is_ours(device):
                self._of_others[kind] += publication_bytes(event.topic, len(event.payload), qos=1)
                return
            if device not in self._heard:
                # Before it gets an order: what it answers comes by this subscription.
                self._heard.add(device)
                self._connection.subscribe((topics.coordinator_device_filter(self._served.federation, device),))
        self._events.put(event)

    def shut_out(self, device: str) -> None:
        """A device was revoked: wait for it no longer, if it is of this shard."""
        if self._is_ours(device):
            self._inbox.shut_out(device)

    def ask_who_is_there(self) -> None:
        """Ask all devices of the federation to say hello."""
        self.publisher.call()

    def look(self, work: Mapping[str, tuple[str, AssignmentState]], remaining_s: float) -> None:
        """Send the orders that were published, tell of those that are over, and write what was heard.

        Args:
            work: unanswered assignments that may be sent, of all devices: id -> device and state.
            remaining_s: seconds left in the open round.
        """
        now = time.monotonic()
        ours = {key: state for key, (device, state) in work.items() if self._is_ours(device)}
        new = [
            key
            for key, state in ours.items()
            if key not in self._told or (state == "open" and now - self._told[key][1] >= REANNOUNCE_S)
        ]
        for entry in self._ledger.assignments.with_ids(new):
            member = self._cohort.member(entry.device)
            if member is not None and member.away_reason == REVOKED:
                self._inbox.shut_out(entry.device)  # planned before the leader could know
                continue
            self.publisher.order(read_order(entry.order), deadline_s=remaining_s)
            self._told[entry.assignment_id] = entry.device, now
        over = [key for key in self._told if key not in ours]
        for entry in self._ledger.assignments.with_ids(over):
            if entry.state == "expired":  # by the coordinator that leads; every other end was answered here
                reason = f"round {entry.round}, attempt {entry.attempt}: not waited for any longer. {entry.reason}"
                self.publisher.ack(entry.device, Ack(entry.assignment_id, False, STALE_ROUND, reason))
        for key in over:
            del self._told[key]
        if over or self._cohort.has_news() or now >= self._write_at:
            self._write_at = now + WRITE_S
            self._write()

    def _write(self) -> None:
        presences = self._cohort.unwritten(self.shard.owner)
        try:
            self._ledger.presences.put(presences)
        except LedgerError:
            self._cohort.not_written(presences)
            raise
        rows = [row for row in self.publisher.account.take() if self._cohort.member(row.device) is not None]
        for row in rows:
            if row.direction == "up":
                self._carried[row.device] += row.payload_bytes
        self._ledger.traffic.add(rows)

    def note(self) -> dict[str, Any]:
        """What came by this connection: bytes of updates by device, and bytes of other shards' devices by kind."""
        return {
            "shard": self.shard.number,
            "owner": self.shard.owner,
            "term": self.shard.term,
            "carried": dict(sorted(self._carried.items())),
            "of_others": dict(sorted(self._of_others.items())),
        }

    def close(self) -> None:
        """Answer nobody any more; the lease is the caller's to let go afterwards."""
        self._disconnect()
        if self.shard.is_held():
            with contextlib.suppress(LedgerError):
                self._write()
        self._stack.close()
        self._served.record("shard-left", **self.note())
