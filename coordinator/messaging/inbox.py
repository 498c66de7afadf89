"""Everything devices send: checked, written to the ledger, answered. One handler per message kind, one thread.

Every handler is idempotent: devices repeat what is not answered, brokers deliver twice. A message that cannot be used
is answered with an ``error`` and changes nothing. Updates are :mod:`edge.serving.uploads`'.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping

import msgspec

from coordinator.audit_log import actors
from coordinator.blobs.blob_store import BlobStore
from coordinator.ledger.connections import LedgerAway
from coordinator.ledger.ledger import Ledger
from coordinator.ledger.records import Assignment
from coordinator.messaging.cohort import Cohort
from coordinator.messaging.named_blobs import NamedBlobs
from coordinator.messaging.update_book import LedgerBook
from edge.contracts.envelope import Envelope
from edge.contracts.errors import ArtifactCorrupt, LeaseLost, MessageRejected, SignatureRejected
from edge.contracts.messages import Accept, Ack, Bye, Error, Get, Heartbeat, Hello, Refuse
from edge.contracts.plan import read_order
from edge.serving.admission import UPLOADS_AT_ONCE
from edge.serving.budgets import over_budget
from edge.serving.dispatch import Dispatcher, Handler, own_hello
from edge.serving.publisher import Publisher
from edge.serving.uploads import UploadHandler
from profiles.device import DeviceProfile

REVOKED = "revoked"
"""Why a device is away, and the code of an assignment that expired with it."""
ARRIVALS_TOLD = 50
"""Devices whose arrival is a line of its own."""

DOUBT_S = 10.0
"""A signed order is refused for its signature when that is said again so long after the first time: open orders are
sent every 15 s."""

MOST_DOUBTED = 10_000


class Inbox:
    """Handles one message at a time; :meth:`handle` never raises for what a device sent.

    Args:
        remaining_s: seconds left in the open round, for orders that are announced again.
        say: progress lines for people.
        on_point: see :class:`coordinator.rounds.federation.Federation`.
        check: raises SignatureRejected for a message of a device that is not that device's own; None: all are.
        uploads_at_once: uploads that have their grants at the same time; the others wait.
        more_handlers: of further message kinds, by kind; called with the device and the envelope.
        give: answers a request for a block that the device may have; None: at once.

    Attributes:
        accepts_together: accepts that are written in one transaction; with more than one, whoever calls
            :meth:`handle` calls :meth:`settle` when it has nothing more to hand over.
        uploads: takes updates, over HTTPS too.
        named: which blobs each device may have, over HTTPS too.
    """

    def __init__(
        self,
        federation: str,
        *,
        ledger: Ledger,
        blobs: BlobStore,
        cohort: Cohort,
        publisher: Publisher,
        remaining_s: Callable[[], float],
        say: Callable[[str], None],
        on_point: Callable[[str], None] = lambda point: None,
        check: Callable[[str, Envelope], None] | None = None,
        more_handlers: Mapping[str, Handler] | None = None,
        uploads_at_once: int = UPLOADS_AT_ONCE,
        give: Callable[[str, Get], None] | None = None,
    ) -> None:
        self._ledger = ledger
        self._blobs = blobs
        self._cohort = cohort
        self._publisher = publisher
        self._remaining_s = remaining_s
        self._say = say
        self._on_point = on_point
        self._changed = threading.Condition()
        self._handling = threading.RLock()
        self._has_news = False
        self._arrivals = 0
        self._accepted: list[str] = []
        self._doubted: dict[str, float] = {}
        self.accepts_together = 1
        self._book = LedgerBook(
            ledger,
            blobs,
            publisher,
            lambda device: member.hello.num_examples if (member := cohort.member(device)) else None,
        )
        self.named = NamedBlobs(ledger, self._book.manifest)
        self._give = give or publisher.block
        self.uploads = UploadHandler(
            self._book,
            publisher,
            say,
            at_rest=self._handling,
            on_point=on_point,
            notify=self.notify,
            at_once=uploads_at_once,
        )
        self._handlers: dict[str, Handler] = {
            "hello": self._hello,
            "heartbeat": self._heartbeat,
            "bye": lambda device, e: self._cohort.leave(device, e.read(Bye).reason),
            "profile": self._profile,
            "accept": self._accept,
            "refuse": self._refuse,
            "get": self._get,
            **self.uploads.handlers,
            **(more_handlers or {}),
        }
        # Whoever leads now answers, or this process later, and where the database is is no device's business.
        unanswered = (LeaseLost, LedgerAway)
        self._dispatcher = Dispatcher(federation, self._handlers, publisher, say, check=check, unanswered=unanswered)

    def wait(self, timeout_s: float) -> None:
        """Return when the ledger changed since the last call, or after ``timeout_s``. For one waiting thread."""
        with self._changed:
            self._changed.wait_for(lambda: self._has_news, timeout_s)
            self._has_news = False

    def at_rest(self) -> threading.RLock:
        """A context in which no message is handled: what is looked up in it stays so until it ends."""
        return self._handling

    def handle(self, topic: str, payload: bytes) -> None:
        """Use one message; whatever is wrong with it is answered, logged and forgotten."""
        with self._handling:
            self._dispatcher.handle(topic, payload)

    def _get(self, device: str, envelope: Envelope) -> None:
        get = envelope.read(Get)
        if (device, get.digest) in self.named:
            self._give(device, get)
        else:
            what = f"blob {get.digest[:12]} is not named by an order of this device; say hello for a new one"
            self._publisher.error(device, Error("unknown-blob", what, get.digest))

    def _hello(self, device: str, envelope: Envelope) -> None:
        hello = own_hello(device, envelope)
        is_new = self._cohort.member(device) is None
        self._publisher.tell_signers(device)  # before it is one of those that orders go to
        self._cohort.greet(hello)
        if is_new:
            self._tell_arrival(hello)
        self.announce(device)

    def _tell_arrival(self, hello: Hello) -> None:
        """Every one of the first :data:`ARRIVALS_TOLD` devices, then their number as it grows."""
        self._arrivals += 1
        if self._arrivals <= ARRIVALS_TOLD:
            self._say(self._cohort.arrival(hello))
        elif self._arrivals % max(ARRIVALS_TOLD, 10 ** (len(str(self._arrivals)) - 1)) == 0:
            self._say(f"{self._arrivals} devices are here")

    def _profile(self, device: str, envelope: Envelope) -> None:
        """A device that joins later is planned with its newest profile; one in the run's snapshot keeps that."""
        profile = envelope.read(DeviceProfile)
        if profile.device != device:
            raise MessageRejected(f"profile of '{profile.device[:64]}' arrived on the topic of '{device}'; not used")
        member = self._cohort.member(device)
        if member is None:
            self._publisher.call(device)
            return
        self._cohort.greet(msgspec.structs.replace(member.hello, profile=profile))

    def _heartbeat(self, device: str, envelope: Envelope) -> None:
        if not self._cohort.beat(device, envelope.read(Heartbeat)):
            self._publisher.call(device)  # it was here before this process was: only its hello tells what it is

    def shut_out(self, device: str) -> None:
        """Wait for ``device`` no longer: it was revoked. Its open assignment expires; what it has reported stays."""
        with self._handling:
            is_here = self._cohort.member(device) is not None
            if is_here or self._ledger.assignments.open_of(device) is not None:
                self._ledger.audit_log.add("device-shut-out", actors.device(device), {"why": "it was revoked"})
            self._cohort.leave(device, REVOKED)
            while (entry := self._ledger.assignments.open_of(device)) is not None:
                self._ledger.assignments.move(
                    entry.assignment_id, "expired", code=REVOKED, reason="the device was revoked"
                )
                self.uploads.forget(entry.assignment_id)
                self._say(f"{device} was revoked: round {entry.round + 1} does not wait for it")
                is_here = False
            if is_here:
                self._say(f"{device} was revoked")
        self.notify()

    def connected(self) -> None:
        """Ask who is there, and announce to those known: agents may be older than this process, orders may be lost."""
        self._publisher.call()
        for hello in self._cohort.present(usable_only=False):
            self.announce(hello.device)

    def announce(self, device: str) -> None:
        """Send ``device`` its open order again, if it has one that was published."""
        entry = self._ledger.assignments.open_of(device)
        attempt = None if entry is None else self._ledger.rounds.find(entry.round, entry.attempt)
        if entry is not None and attempt is not None and attempt.state not in ("planned", "abandoned"):
            self._publisher.order(read_order(entry.order), deadline_s=self._remaining_s())

    def _accept(self, device: str, envelope: Envelope) -> None:
        entry = self._book.own(device, envelope.read(Accept).assignment_id)
        if entry is not None and entry.state == "open":
            self._accepted.append(entry.assignment_id)
            if len(self._accepted) >= self.accepts_together:
                self.settle()

    def name(self, device: str, why: str) -> None:
        """Say to people and in the audit log that what comes in the name of ``device`` is over its budget."""
        self._say(over_budget(device, why))
        with contextlib.suppress(LeaseLost, LedgerAway):
            self._ledger.audit_log.dropped(device, "over-budget", why)

    def settle(self) -> None:
        """Write the accepts that were gathered. None of them was answered: those of a crash come again."""
        if self._accepted:
            self._ledger.assignments.accept(self._accepted)
            self._accepted.clear()
            self.notify()

    def _refuse(self, device: str, envelope: Envelope) -> None:
        refusal = envelope.read(Refuse)
        entry = self._book.own(device, refusal.assignment_id)
        if entry is None or (refusal.code == SignatureRejected.code and self._is_doubtful(entry)):
            return
        self._ledger.assignments.move(
            entry.assignment_id,
            "refused",
            code=refusal.code[:64],
            reason=refusal.reason[:1000],
            peak_bytes=refusal.peak_bytes,
            limit_bytes=refusal.budget_bytes,
        )
        self._say(f"{device} refuses round {entry.round} ({refusal.code[:64]}): {refusal.reason[:300]}")
        if refusal.code == ArtifactCorrupt.code:
            self._drop_corrupt_blobs(entry)
        self._publisher.ack(device, Ack(entry.assignment_id, False, "refused", "refusal recorded"))
        self.notify()

    def _is_doubtful(self, entry: Assignment) -> bool:
        """Whether what was refused may be an order that somebody forged under this id; the true one is then sent again.

        A device that has it in hand refuses no forged one any more; one that does not trust it refuses it again.
        """
        if entry.state != "open" or not self._publisher.is_signed:
            return False
        now = time.monotonic()
        if entry.assignment_id not in self._doubted:
            if len(self._doubted) >= MOST_DOUBTED:
                self._doubted.clear()
            self._doubted[entry.assignment_id] = now
            self._say(
                f"{entry.device} had an order of round {entry.round} that it does not trust "
                f"({SignatureRejected.code}); ours is sent again"
            )
            self.announce(entry.device)
        return now - self._doubted[entry.assignment_id] < DOUBT_S

    def _drop_corrupt_blobs(self, entry: Assignment) -> None:
        """Delete what the device was sent and is not its digest on our own disk: the next attempt makes it anew."""
        digests = [entry.weights_digest, entry.artifact_digest]
        digests += [ref.digest for ref in read_order(entry.order).standing_blobs]
        if entry.artifact_digest in self._blobs:
            try:
                digests += [file.sha256 for file in self._book.manifest(entry).files]
            except MessageRejected as error:
                self._say(f"manifest {entry.artifact_digest[:12]} cannot be read: {error}")
        for digest in digests:
            try:
                self._blobs.verify(digest)
            except ArtifactCorrupt as error:
                self._say(f"{error}; it is made anew")
                self._publisher.forget(digest)
                self._blobs.delete(digest)

    def notify(self) -> None:
        """Wakes :meth:`wait`: the ledger changed."""
        with self._changed:
            self._has_news = True
            self._changed.notify_all()
