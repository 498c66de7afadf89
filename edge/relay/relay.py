"""The relay of a site: take one order, hand it to the site's devices, collect, sum, upload one update. In that order.

One thread takes events from one queue; the transports of both sides put them there. Above, it is an agent without a
trainer; what it answers its devices is :mod:`edge.relay.device_handler`'s. Everything it is told twice it does once.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import time
from collections.abc import Iterator

import msgspec

from edge.contracts.envelope import Envelope, unseal
from edge.contracts.errors import ApportionError, DeadlineExpired, MessageRejected, StoreFull
from edge.contracts.messages import Accept, Ack, AgentState, Block, Error, Get, Grant, Hello, Refuse
from edge.contracts.plan import WorkOrder
from edge.contracts.report import TrainReport
from edge.identity.trust import complaint
from edge.relay.device_handler import DeviceHandler
from edge.relay.events import FromSide, RelayEvents
from edge.relay.settings import RelaySettings
from edge.relay.site_devices import SiteDevices
from edge.relay.site_hello import nobody, shortfall, site_heartbeat, site_hello, unable
from edge.relay.site_sum import make_update, upload_specs
from edge.relay.site_work import SiteRecord, SiteWork
from edge.supervisor.assignment import order_identity
from edge.supervisor.events import Stop
from edge.supervisor.finished_work import FinishedWork
from edge.supervisor.outbox import Outbox
from edge.supervisor.settled_work import REPLAYED, SettledWork
from edge.transfer.artifact_store import ArtifactStore
from edge.transfer.fetcher import OrderFetch
from edge.transfer.link_rate import LinkRate
from edge.transfer.uploader import Uploader
from edge.transport.base import Connected, Disconnected, Received, Transport
from edge.transport.blocks import BlockRejected

log = logging.getLogger("apportion.relay")

POLL_S = 0.25
GATHER_S = 10.0  # a relay that has just started waits so long for devices that were there before
GREET_S = 1.0  # the site says hello anew at most this often, however its devices come and go


class Relay:
    """One site. :meth:`run` returns when it was stopped; :meth:`stop` may be called from a signal handler."""

    def __init__(self, settings: RelaySettings, above: Transport, site: Transport, store: ArtifactStore) -> None:
        self._settings = settings
        self._above, self._site = above, site
        self._store = store
        self._outbox = Outbox(above, settings.federation, settings.device)
        self._devices = SiteDevices(settings)
        self._handler = DeviceHandler(settings, site, store, self._devices, self._collect_s)
        self._events = RelayEvents(self._handler.publisher.budgets)
        self._finished = FinishedWork(store.root / "work")
        self._settled = SettledWork(store.root / "settled")
        self._work: SiteWork | None = None
        self._fetch: OrderFetch | None = None
        self._uploader: Uploader | None = None
        self._said: Hello | None = None
        self._heartbeat_at, self._greet_at = 0.0, 0.0
        self._began_at = time.monotonic()
        self._is_stopping, self._farewell = False, "stopped"

    @property
    def state(self) -> AgentState:
        """What the relay is doing, in an agent's words."""
        if self._work is None:
            return "idle"
        if self._uploader is not None:
            return "uploading"
        return "training" if self._work.is_handed_out else "fetching"

    def stop(self, reason: str) -> None:
        """Ask for the end; returns at once."""
        self._events.put("stop", Stop(reason))

    def run(self) -> None:
        """Serve site and federation until stopped.

        Raises:
            BrokerUnreachable: as :meth:`edge.transport.base.Transport.start`; also AccessDenied.
        """
        with contextlib.closing(self._store):
            self._restore()
            self._site.start(self._events.from_site)
            try:
                self._above.start(self._events.from_above)
                while not self._is_stopping:
                    with contextlib.suppress(queue.Empty):
                        self._take(self._events.get(POLL_S))
                    self._tick(time.monotonic())
            finally:
                if self._fetch is not None:
                    self._fetch.close()
                self._site.stop()
                self._handler.publisher.close()
                self._outbox.close(self._farewell)

    def _restore(self) -> None:
        finished, work = self._finished.load(), SiteWork.load(self._store.root / "site")
        if work is None:
            if finished is not None:
                self._finished.forget(finished.order.assignment_id)  # its devices are not known any more
            return
        log.info("assignment %s goes on: %d updates are in", work.order.assignment_id[:12], len(work.reports))
        self._work = self._handler.work = work
        self._said = work.record.hello
        self._settled.is_replay(work.order)  # never: so that it is remembered once it is acknowledged
        if finished is not None and finished.order.assignment_id == work.order.assignment_id:
            self._upload(finished.report)
        else:
            self._start_fetch(work)  # finds what is there
        for report in work.reports.values():
            self._store.pin(report.update.digest)

    def _take(self, taken: FromSide | Stop) -> None:
        match taken:
            case Stop(reason=reason):
                self._is_stopping, self._farewell = True, reason
            case FromSide(side="site", event=Connected()):
                self._handler.publisher.call()
                self._handler.hand_out()
            case FromSide(side="site", event=Received(topic=topic, payload=payload)):
                self._handler.received(topic, payload)
            case FromSide(side="above", event=Connected()):
                self._outbox.is_connected = True
                self._hello()
                now = time.monotonic()
                if self._fetch is not None:
                    self._fetch.reconnected(now)
                if self._uploader is not None:
                    self._uploader.reconnected(now)
            case FromSide(side="above", event=Disconnected()):
                self._outbox.is_connected = False
            case FromSide(side="above", event=Received(payload=payload)):
                self._received(payload)

    # hello: one profile for the site

    def _hello(self) -> None:
        if self._said is not None:
            at = "" if self._work is None else self._work.order.assignment_id
            self._outbox.send("hello", msgspec.structs.replace(self._said, state=self.state, assignment_id=at))

    def _greet(self, now: float) -> None:
        """Say hello when the devices that are here make another site than the one last spoken of."""
        if now < self._greet_at:
            return
        self._greet_at = now + GREET_S
        work = self._work
        in_hand = 0 if work is None else work.record.hello.num_examples
        hello = site_hello(self._settings, self._devices.served(now), self._said, in_hand)
        if hello is not None and hello != self._said:
            self._said = hello
            self._hello()

    # order

    def _received(self, payload: bytes) -> None:
        try:
            self._dispatch(unseal(payload))
        except MessageRejected as error:
            log.warning("message of %d bytes ignored: %s", len(payload), error)
            self._outbox.send(*complaint(error, "" if self._work is None else self._work.order.assignment_id))
        except OSError as error:
            log.error("message of %d bytes is left unanswered: %s; free disk space", len(payload), error)

    def _dispatch(self, envelope: Envelope) -> None:
        now, work = time.monotonic(), self._work
        match envelope.kind:
            case "order":
                self._ordered(self._settings.read_order(envelope))
            case "block" if self._fetch is not None and work is not None:
                with self._giving_up_on_failure():
                    self._fetch.received(envelope.read(Block), now)
                    self._go_on(work)
            case "grant" if self._uploader is not None:
                self._uploader.granted(envelope.read(Grant), now)
            case "ack":
                self._acknowledged(envelope.read(Ack))
            case "error":
                self._told_of_error(envelope.read(Error))
            case "hello":
                self._hello()
            case kind:
                log.info("message of kind %r ignored", kind[:40])

    def _ordered(self, order: WorkOrder) -> None:
        is_replay, work = self._settled.is_replay(order), self._work
        record = SiteRecord.taken(order, self._said or nobody(self._settings))
        if work is not None and work.identity == order_identity(order):
            work.update(msgspec.structs.replace(work.record, deadline_at=record.deadline_at))
            self._outbox.send("accept", Accept(order.assignment_id))
            if self._uploader is not None:
                self._uploader.reconnected(time.monotonic())
            return
        told = (REPLAYED, "this order is settled; order anew")
        code, reason = told if is_replay else unable(self._settings, order, record.hello, self._store)
        if code:
            log.info("order %s refused: %s", order.assignment_id[:12], reason)
            self._outbox.send("refuse", Refuse(assignment_id=order.assignment_id, code=code, reason=reason))
            return
        if work is not None:
            self._drop(f"order {order.assignment_id[:12]} of round {order.round} takes its place")
        self._work = self._handler.work = SiteWork.begin(self._store.root / "site", record)
        self._outbox.send("accept", Accept(order.assignment_id))
        self._start_fetch(self._work)

    # fetch, and hand out

    def _start_fetch(self, work: SiteWork) -> None:
        with self._giving_up_on_failure():
            self._fetch = self._settings.fetch(work.order, self._store, self._ask)
            self._fetch.start(time.monotonic())
            self._go_on(work)

    def _ask(self, get: Get) -> None:
        self._outbox.send("get", get, 0)

    def _go_on(self, work: SiteWork) -> None:
        if self._fetch is None or self._fetch.complete_manifest() is None or work.is_handed_out:
            return
        order, where = work.order, f"relay {work.order.device}, round {work.order.round}"
        try:
            upload_specs(order, self._store.path(order.weights.digest))
        except KeyError as error:
            self._give_up("not-summable", f"{where}: updates are to hold {error}, which no weights were sent for")
            return
        served, least, now = self._devices.served(time.monotonic()), self._settings.min_devices, time.monotonic()
        examples = {hello.device: hello.num_examples for hello in served}
        if now - self._began_at < GATHER_S and sum(examples.values()) < work.record.hello.num_examples:
            return  # after a restart: its devices are still being heard of
        if len(served) < least:
            self._give_up("too-few-devices", f"{where}: {len(served)} of {least} devices are here")
            return
        work.update(
            msgspec.structs.replace(
                work.record,
                examples=examples,
                bytes_down=self._fetch.bytes_down,
                hello=site_hello(self._settings, served, None, 0) or work.record.hello,
            )
        )
        log.info("round %d: handed to %s", order.round + 1, ", ".join(examples))
        self._began_at = time.monotonic()
        self._greet_at = 0.0
        self._handler.hand_out()

    def _collect_s(self) -> float:
        """Seconds the devices still have; infinite without a deadline."""
        rate = LinkRate(self._store.root).bytes_per_s
        return float("inf") if self._work is None else self._work.collect_s(self._settings.share, rate)

    # collect, sum

    def _tick_collecting(self, work: SiteWork, now: float) -> None:
        """Go on when all is in, the devices' time is over, or nothing was heard for long of those that are missing."""
        heard_at = max(
            (max(self._began_at, self._devices.heard_at(d)) for d in work.open_devices()), default=float("-inf")
        )
        if work.closed is None and now - heard_at <= self._settings.away_s and self._collect_s() > 0:
            return
        with self._giving_up_on_failure():
            self._close(work)

    def _close(self, work: SiteWork) -> None:
        if reason := shortfall(work, self._settings.min_devices):
            self._give_up("too-few-devices", reason)
            return
        work.close()
        report = make_update(work, self._store, self._finished)
        log.info("round %d: updates of %d devices in one", report.round + 1, report.site_devices)
        self._upload(report)

    # upload, ack

    def _upload(self, report: TrainReport) -> None:
        self._settings.count_upload(report)
        path = self._finished.update_path(report.assignment_id)
        self._uploader = Uploader(report, path, self._outbox.send, time.monotonic())

    def _acknowledged(self, ack: Ack) -> None:
        work = self._work
        self._settled.settle(ack.assignment_id)
        if work is None or ack.assignment_id != work.order.assignment_id:
            return
        if not ack.accepted:
            log.warning("assignment %s was rejected: %s %s", ack.assignment_id[:12], ack.code, ack.reason)
        self._drop("its update counts" if ack.accepted else "the coordinator has settled it")

    def _told_of_error(self, error: Error) -> None:
        log.warning("the coordinator says %s: %s (%s)", error.code, error.message, error.about[:64])
        if self._fetch is not None and self._fetch.is_fetching(error.about):
            self._give_up(error.code, error.message)

    # what time brings

    def _tick(self, now: float) -> None:
        self._greet(now)
        work = self._work
        if work is not None:
            self._tick_work(work, now)
        if now >= self._heartbeat_at and self._said is not None:
            self._heartbeat_at = now + self._settings.heartbeat_s
            self._outbox.send("heartbeat", site_heartbeat(self.state, work))

    def _tick_work(self, work: SiteWork, now: float) -> None:
        if work.remaining_s() <= 0:
            reason = f"relay {work.order.device}, round {work.order.round}: still {self.state} when its time was over"
            self._give_up(DeadlineExpired.code, f"{reason}; allow more")
            return
        if self._fetch is not None and self._outbox.is_connected:
            self._fetch.tick(now)
        if self._uploader is None and work.is_handed_out:
            self._tick_collecting(work, now)
        elif self._uploader is None:
            self._go_on(work)
        if self._uploader is not None and self._outbox.is_connected:
            self._uploader.tick(now)

    @contextlib.contextmanager
    def _giving_up_on_failure(self) -> Iterator[None]:
        """A failure ends the work in hand with its reason; a bad message leaves it as it is."""
        try:
            yield
        except BlockRejected:
            raise
        except (ApportionError, OSError) as error:  # the latter: a full disk
            self._give_up(getattr(error, "code", StoreFull.code), str(error))

    def _give_up(self, code: str, reason: str) -> None:
        if self._work is not None:
            refusal = Refuse(assignment_id=self._work.order.assignment_id, code=code, reason=reason)
            self._drop(reason)
            self._outbox.send("refuse", refusal)

    def _drop(self, reason: str) -> None:
        assert self._work is not None
        work, self._work, self._handler.work = self._work, None, None
        log.info("assignment %s is over: %s", work.order.assignment_id[:12], reason)
        if self._fetch is not None:
            self._fetch.close()
        self._fetch = self._uploader = None
        work.forget()
        self._handler.let_go(work, reason)
        self._finished.update_path(work.order.assignment_id)  # its folder is made where there is none
        self._finished.forget(work.order.assignment_id)
