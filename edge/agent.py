"""The supervisor of a device: connect, hello, order, fetch, train, upload, report, ack. Reads in that order.

One thread takes events from one queue; transport and trainer put them there. It knows no method and no runtime, and
holds neither NumPy nor a runtime: those live in the trainer child. Everything it is told twice it does once.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import time
from collections.abc import Iterator

from edge.contracts.envelope import Envelope, unseal
from edge.contracts.errors import ApportionError, ConfigError, MessageRejected, PolicyWaits
from edge.contracts.manifest import ArtifactManifest
from edge.contracts.messages import Accept, Ack, AgentState, Block, Error, Grant, Refuse
from edge.contracts.plan import WorkOrder
from edge.contracts.report import TrainReport
from edge.home_assistant.home import Home, Status
from edge.identity.credentials import Credentials
from edge.identity.trust import complaint
from edge.supervisor.assignment import Assignment, order_identity
from edge.supervisor.conditions import HERE, Surroundings
from edge.supervisor.crashes import Crashes
from edge.supervisor.events import AgentEvent, AgentEvents, Stop
from edge.supervisor.finished_work import FinishedRecord, FinishedWork
from edge.supervisor.gate import Gate
from edge.supervisor.installing import installed
from edge.supervisor.masked_round import Masker
from edge.supervisor.native_trainer import UNABLE
from edge.supervisor.outbox import Outbox
from edge.supervisor.presence import Presence, heartbeat
from edge.supervisor.settings import AgentSettings
from edge.supervisor.settled_work import REPLAYED, SettledWork
from edge.supervisor.sign_of_life import SignOfLife
from edge.supervisor.states import StateMachine
from edge.supervisor.trainer_link import TrainerEnded, TrainerLink, TrainerSaid
from edge.supervisor.trainer_messages import (
    Describe,
    Described,
    Failed,
    Progress,
    Ready,
    Reply,
    Storing,
    Train,
    Trained,
)
from edge.system.energy import EnergyMeter
from edge.system.parent_process import is_alive
from edge.transfer.artifact_store import ArtifactStore
from edge.transport.base import Connected, Disconnected, Received, Transport
from edge.transport.blocks import BlockRejected

log = logging.getLogger("apportion.agent")

POLL_S = 0.5


class Agent:
    """One device. :meth:`run` returns when it was stopped; :meth:`stop` may be called from a signal handler."""

    def __init__(
        self,
        settings: AgentSettings,
        transport: Transport,
        store: ArtifactStore,
        around: Surroundings = HERE,
        home: Home | None = None,
    ) -> None:
        self._settings = settings
        self._transport = transport
        self._store = store
        self._outbox = Outbox(transport, settings.federation, settings.device)
        self._presence = Presence(settings, store.root, around.root)
        self._finished = FinishedWork(store.root / "work")
        self._settled = SettledWork(store.root / "settled")
        self._events = AgentEvents()  # a put is safe in a signal handler
        self.trainer = TrainerLink(python=settings.python, runtime=settings.runtime, deliver=self._events.put)
        self._gate = Gate(settings.conditions, self._presence, self.trainer, around)
        self._machine = StateMachine()
        self._work: Assignment | None = None
        self._crashes = Crashes(settings, store.root / "training", around.root, self._presence.profile)
        self._heartbeat_at, self._farewell = 0.0, "stopped"
        self._alive = SignOfLife(settings.alive_file)
        self._home = home or Home()
        self._masker = Masker.of(settings, store.root / "masking", self._outbox.send)
        self._credentials = Credentials(settings.device, settings.certificate, settings.trust, self._outbox.send)

    @property
    def state(self) -> AgentState:
        """As in :mod:`edge.supervisor.states`."""
        return self._machine.state

    def stop(self, reason: str) -> None:
        """Ask for the end; returns at once."""
        self._events.put(Stop(reason))

    def run(self) -> None:
        """Serve the federation until stopped.

        Raises:
            BrokerUnreachable: as :meth:`edge.transport.base.Transport.start`; also AccessDenied.
            ConfigError: the runtime cannot be started here.
        """
        with contextlib.closing(self._store):
            self._restore()
            self._home.begin()
            self._transport.start(self._events.put)
            try:
                self._describe()
                while self.state != "stopping":
                    with contextlib.suppress(queue.Empty):
                        self._take(self._events.get(timeout=POLL_S))
                    self._tick(time.monotonic())
            finally:
                if self._work is not None:
                    self._work.close()
                self._crashes.over()
                self.trainer.kill()
                self._outbox.close(self._farewell)
                self._home.close()

    def _describe(self) -> None:
        """Learn of runtime and data: from the trainer without Python where it can tell, it is a sixth of the other."""
        # Who wants self-tests has every order carried out by the Python trainer.
        told = None if self._settings.self_test else self.trainer.native.describe(self._settings.data)
        if told is None:
            self._ask_python()
        else:
            self._presence.told(told)
            self._hello()

    def _ask_python(self) -> None:
        self.trainer.send(Describe(self._settings.data, str(self._store.symbols)))

    def _restore(self) -> None:
        record = self._finished.load()
        if record is not None:
            log.info("assignment %s is trained, its report not acknowledged yet", record.order.assignment_id[:12])
            self._work = Assignment.taken(record.order)
            self._settled.is_replay(record.order)  # never: so that it is remembered once it is acknowledged
            self._work.start_upload(self._settings, record.report, self._finished, self._outbox.send, self._events.put)
            self._machine.move("restored")

    def _take(self, event: AgentEvent) -> None:
        match event:
            case Connected():
                self._outbox.is_connected = True
                self._hello()
            case Disconnected():
                self._outbox.is_connected = False
            case Received(payload=payload):
                self._received(payload)
            case TrainerSaid(reply=reply):
                self._trainer_said(reply)
            case TrainerEnded():
                self._trainer_ended(event)
            case Stop(reason=reason):
                self._farewell = reason
                self._machine.move("stop")

    def _hello(self) -> None:
        if not self._presence.is_known:
            return  # said as soon as the trainer has told of runtime and data
        self._outbox.send("hello", self._presence.hello(self.state, self._work))
        if self._work is not None:
            self._work.reconnected(time.monotonic())

    def _received(self, payload: bytes) -> None:
        try:
            self._dispatch(unseal(payload))
        except OSError as error:  # a full disk, where something is to be on it before it is said or done
            log.warning("message of %d bytes not followed: %s", len(payload), error)
        except MessageRejected as error:
            log.warning("message of %d bytes ignored: %s", len(payload), error)
            self._outbox.send(*complaint(error, "" if self._work is None else self._work.order.assignment_id))

    def _dispatch(self, envelope: Envelope) -> None:
        match envelope.kind:
            case "order":
                self._ordered(self._settings.read_order(envelope))
            case "block":
                self._block(envelope.read(Block))
            case "grant":
                self._granted(envelope.read(Grant))
            case "ack":
                self._acknowledged(envelope.read(Ack))
            case "error":
                self._told_of_error(envelope.read(Error))
            case "hello":
                self._hello()  # a coordinator that has just started asks who is there
            case kind if not (self._masker.received(envelope) or self._credentials.received(envelope)):
                log.info("message of kind %r ignored", kind[:40])

    # order

    def _ordered(self, order: WorkOrder) -> None:
        work, is_replay = self._work, self._settled.is_replay(order)
        if work is not None and work.identity == order_identity(order):
            self._outbox.send("accept", Accept(order.assignment_id))
            work.ordered_again(order, time.monotonic())
            return
        taken = Assignment.taken(order)
        refusal = taken.refusal(REPLAYED, "this order is settled; order anew") if is_replay else self._refusal(taken)
        if refusal is not None:
            log.info("order %s refused: %s", order.assignment_id[:12], refusal.reason)
            self._outbox.send("refuse", refusal)
            return
        if work is not None:
            self._drop(f"order {order.assignment_id[:12]} of round {order.round} takes its place")
        self._work = taken
        self._machine.move("order")
        self._outbox.send("accept", Accept(order.assignment_id))
        self._fetch(taken)

    def _refusal(self, taken: Assignment) -> Refuse | None:
        if refusal := taken.forbidden(self._settings, self._store) or self._crashes.known(taken):
            return refusal
        if self._presence.data_error:
            self._ask_python()  # the owner may have mended it since
            return taken.refusal(self._presence.data_error_code, self._presence.data_error)
        if reason := self._home.denial():
            return taken.refusal(PolicyWaits.code, reason)
        return self._masker.refusal(taken) or taken.unable() or taken.over_budget(self._settings)

    # fetch

    def _fetch(self, work: Assignment) -> None:
        with self._giving_up_on_failure(work):
            work.start_fetch(self._settings, self._store, self._outbox.send, self._events.put)
            self._go_on(work)

    def _block(self, block: Block) -> None:
        work = self._work
        if work is None or work.fetch is None or self.state != "fetching":
            return
        with self._giving_up_on_failure(work):
            work.fetch.received(block, time.monotonic())
            self._go_on(work)

    def _go_on(self, work: Assignment) -> None:
        manifest = work.complete_manifest()
        if manifest is None:
            return
        is_native = self.trainer.native.flat(self._request(work, manifest), manifest) is not None
        work.estimate(manifest, self._presence.profile(), self._settings.runtime, is_native=is_native)
        refusal = work.over_budget(self._settings)
        if refusal is not None:
            self._give_up(refusal)
            return
        self._store.reserve(work.update_bytes(manifest))
        self._machine.move("fetched")
        self._begin(work, manifest)

    # train

    def _begin(self, work: Assignment, manifest: ArtifactManifest) -> None:
        if self._masker.lets(work) and self._gate.lets(work):
            self._machine.move("begin")
            if not self.trainer.resume():
                self._train(work, manifest)

    def _train(self, work: Assignment, manifest: ArtifactManifest) -> None:
        with self._giving_up_on_failure(work):
            if work.order.installation is not None:
                self._trained(
                    work, installed(work, manifest, self._settings, self._store, self._finished, self._presence)
                )
                return
            self._crashes.begins(work)
            work.energy = EnergyMeter()
            self.trainer.train(self._request(work, manifest), manifest)

    def _request(self, work: Assignment, manifest: ArtifactManifest) -> Train:
        return work.train_request(self._settings, self._store, manifest, self._finished)

    def _trainer_said(self, reply: Reply) -> None:
        work = self._work if self.state == "training" or self.trainer.is_paused else None  # said before it was paused
        match reply:
            case Ready():
                if self._presence.ready(reply):
                    self._hello()
            case Described():
                self._presence.native_idle_bytes = self.trainer.native.idle_bytes(self._settings.data)
                if self._presence.described(reply):
                    self._hello()
            case _ if work is None or reply.assignment_id != work.order.assignment_id:
                log.info("the trainer speaks of assignment %s, which is over", reply.assignment_id[:12])
            case Progress():
                work.progress = reply
            case Storing(reason=reason):
                self._finished.problem = reason
            case Trained():
                self._trained(work, work.report(self._settings, reply, is_native=self.trainer.is_native))
            case Failed(code=code, reason=reason) if code == UNABLE:
                self._train_otherwise(work, reason)
            case Failed(code=code, reason=reason, peak_bytes=peak):
                self._give_up(self._crashes.failed(work, code, reason, peak))

    def _train_otherwise(self, work: Assignment, reason: str) -> None:
        """Once more, by the Python trainer, which may be able to, or tells better why not."""
        log.info("the native trainer leaves assignment %s: %s", work.order.assignment_id[:12], reason)
        self.trainer.native.decline(work.order.artifact.digest, reason)
        manifest = work.complete_manifest()
        assert manifest is not None
        self._train(work, manifest)

    def _trainer_ended(self, ended: TrainerEnded) -> None:
        if not self._presence.is_known:
            raise ConfigError([f"runtime: a trainer for '{self._settings.runtime}' cannot start here: {ended.reason}"])
        work = self._work
        manifest = None if work is None else work.complete_manifest()
        if work is None or manifest is None or self.state != "training":
            log.warning("the idle trainer ended: %s", ended.reason)
        elif (refusal := self._crashes.after(work, ended)) is not None:
            self._give_up(refusal)
        else:
            self._train(work, manifest)

    def _trained(self, work: Assignment, report: TrainReport) -> None:
        self._crashes.over()
        self._finished.keep(FinishedRecord(work.order, report))
        if self._settings.policy is not None:
            self._settings.policy.worked(report.processor_s or 0.0)
        self.trainer.resume()
        self._machine.move("trained")
        work.start_upload(self._settings, report, self._finished, self._outbox.send, self._events.put)

    def _granted(self, grant: Grant) -> None:
        if self._work is not None and self._work.uploader is not None:
            self._work.uploader.granted(grant, time.monotonic())

    def _acknowledged(self, ack: Ack) -> None:
        work = self._work
        self._settled.settle(ack.assignment_id)
        if work is None or ack.assignment_id != work.order.assignment_id:
            return
        if not ack.accepted:
            log.warning("assignment %s was rejected: %s %s", ack.assignment_id[:12], ack.code, ack.reason)
        if self.state != "uploading":
            self._drop("the coordinator has settled it without this report")
            return
        self._finished.settle(work.order, is_accepted=ack.accepted)
        if ack.accepted:
            self._home.took_part(work.order.round + 1)
        self._work = None
        self._machine.move("acked")
        if self._settings.once:
            self.stop("done")

    def _told_of_error(self, error: Error) -> None:
        log.warning("the coordinator says %s: %s (%s)", error.code, error.message, error.about[:64])
        if self._work is not None and self._work.is_fetching(error.about):
            self._give_up(self._work.refusal(error.code, error.message))

    def _tick(self, now: float) -> None:
        self._alive.tick(now)
        if self.state == "stopping":
            return
        if self._settings.parent_pid and not is_alive(self._settings.parent_pid):
            self.stop("parent process ended")
        if self._home.tick(now, self._status()) and self.state in ("fetching", "waiting", "training"):
            assert self._work is not None
            self._give_up(self._work.refusal(PolicyWaits.code, self._home.denial()))
        if not self._presence.is_known:
            return
        self._credentials.tick(now, is_connected=self._outbox.is_connected)
        if self._work is not None:
            self._tick_work(self._work, now)
        else:
            self.trainer.end_if_unused(now, self._settings.idle_trainer_s)
        if self._gate.take_news() or self._finished.take_news() or now >= self._heartbeat_at:
            self._heartbeat_at = now + self._settings.heartbeat_s
            self._outbox.send("heartbeat", heartbeat(self.state, self._work, self._finished.problem))

    def _tick_work(self, work: Assignment, now: float) -> None:
        if work.is_expired(now):
            self._give_up(work.expiry(self.state))
            return
        self._finished.tick(now)
        if self._outbox.is_connected:
            work.tick(self.state, now)
            self._masker.tick(work.order, now)
        manifest = work.complete_manifest()
        if manifest is not None and (self._masker.take_news() or self._gate.is_due(now)):
            if self.state == "waiting":
                self._begin(work, manifest)
            elif self.state == "training" and not self._gate.lets(work, is_training=True):
                self.trainer.pause()
                self._machine.move("paused")

    def _status(self) -> Status:
        work = self._work
        return Status(self.state) if work is None else Status(self.state, work.order.round + 1, work.waiting)

    @contextlib.contextmanager
    def _giving_up_on_failure(self, work: Assignment) -> Iterator[None]:
        """A failure ends ``work`` with its reason; a bad message leaves it as it is."""
        try:
            yield
        except BlockRejected:
            raise
        except ApportionError as error:
            self._give_up(work.refusal(error.code, str(error)))

    def _give_up(self, refusal: Refuse) -> None:
        self._drop(refusal.reason)
        self._outbox.send("refuse", refusal)

    def _drop(self, reason: str) -> None:
        assert self._work is not None
        work, self._work = self._work, None
        log.info("assignment %s dropped: %s", work.order.assignment_id[:12], reason)
        self._crashes.over()
        work.close()
        if self.state == "training" or self.trainer.is_paused:
            self.trainer.kill()
        self._finished.forget(work.order.assignment_id)
        self._machine.move("dropped")
