"""The supervisor of a device: connect, hello, order, fetch, train, upload, report, ack. Reads in that order.

One thread takes events from one queue; transport and trainer put them there. It knows no method and no runtime, and
holds neither NumPy nor a runtime: those live in the trainer child. Everything it is told twice it does once.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import queue
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from edge.artifact_store import ArtifactStore
from edge.conditions import waiting_reason
from edge.contracts import topics
from edge.contracts.codec import encode_msgpack
from edge.contracts.envelope import Envelope, seal, unseal
from edge.contracts.errors import ApportionError, ConfigError, DeviceRefused, MessageRejected
from edge.contracts.manifest import ArtifactManifest
from edge.contracts.messages import Accept, Ack, Block, Bye, Error, Grant, Heartbeat, Hello, Refuse
from edge.contracts.plan import BlobRef, WorkOrder
from edge.contracts.report import TrainReport
from edge.fetcher import Fetcher
from edge.finished_work import FinishedRecord, FinishedWork
from edge.meter import is_torch_loaded, peak_rss_bytes, rss_bytes
from edge.states import StateMachine
from edge.trainer_link import TrainerEnded, TrainerEvent, TrainerLink, TrainerSaid
from edge.trainer_messages import Describe, Described, Failed, Progress, Ready, Train, Trained
from edge.transport.base import Connected, Disconnected, Event, Qos, Received, Transport
from edge.uploader import Uploader
from profiles.device import DeviceProfile
from profiles.memory import predict_process_peak
from profiles.probe import probe, temperature_c

log = logging.getLogger("apportion.agent")

VERSION = "0.1.0"
POLL_S = 0.5
CONDITIONS_S = 5.0


@dataclass(frozen=True, kw_only=True)
class AgentSettings:
    """What the owner of a device decides.

    Attributes:
        data: where its examples are (:mod:`edge.local_data`).
        budget_bytes: what supervisor and trainer may reach together; 0 = no limit.
        threads: most intra-op threads an order gets; 0 = as ordered.
        parent_pid: end within seconds of that process; 0 = none.
        once: end after the first acknowledged assignment.
        idle_trainer_s: an unused trainer is ended after this long.
    """

    federation: str
    device: str
    data: str
    runtime: str = "onnxruntime"
    budget_bytes: int = 0
    threads: int = 0
    parent_pid: int = 0
    once: bool = False
    self_test: bool = False
    heartbeat_s: float = 5.0
    idle_trainer_s: float = 30.0


@dataclass(frozen=True)
class Stop:
    """Asks the agent to say goodbye and end."""

    reason: str


@dataclass
class _Work:
    """The assignment in hand. ``identity`` tells a repeated order from another one under the same assignment id."""

    order: WorkOrder
    identity: str
    accepted_at: float
    deadline_at: float
    fetcher: Fetcher | None = None
    manifest: ArtifactManifest | None = None
    needed_bytes: int = 0
    crashes: int = 0
    progress: Progress | None = None
    waiting: str = ""
    uploader: Uploader | None = None


@dataclass
class _Described:
    """What the first trainer told about runtime and data; ``runtimes`` is empty until it did."""

    runtimes: dict[str, str] = field(default_factory=dict)
    idle_bytes: int = 0
    num_examples: int = 0
    error_code: str = ""
    error: str = ""
    is_complete: bool = False


class Agent:
    """One device. :meth:`run` returns when it was stopped; :meth:`stop` may be called from a signal handler."""

    def __init__(self, settings: AgentSettings, transport: Transport, store: ArtifactStore, *, python: str) -> None:
        self._settings = settings
        self._transport = transport
        self._store = store
        self._finished = FinishedWork(store.root / "work")
        self._events: queue.SimpleQueue[Event | TrainerEvent | Stop] = queue.SimpleQueue()
        self.trainer = TrainerLink(python=python, runtime=settings.runtime, deliver=self._events.put)
        self._machine = StateMachine()
        self._work: _Work | None = None
        self._local = _Described()
        self._crashed_for_good: dict[str, Refuse] = {}
        self._is_connected = False
        self._idle_rss_bytes = 0
        self._heartbeat_at = 0.0
        self._conditions_at = 0.0
        self._trainer_used_at = 0.0
        self._farewell = "stopped"

    @property
    def state(self) -> str:
        """The state as in the state table."""
        return self._machine.state

    def stop(self, reason: str) -> None:
        """Ask for the end."""
        self._events.put(Stop(reason))

    # connect

    def run(self) -> None:
        """Serve the federation until stopped.

        Raises:
            BrokerUnreachable: as :meth:`edge.transport.base.Transport.start`; also AccessDenied.
            ConfigError: the runtime cannot be started here.
        """
        self.trainer.start()
        self.trainer.send(Describe(self._settings.data))
        self._restore()
        try:
            self._transport.start(self._events.put)
            while self._machine.state != "stopping":
                with contextlib.suppress(queue.Empty):
                    self._take(self._events.get(timeout=POLL_S))
                self._tick(time.monotonic())
        finally:
            self.trainer.kill()
            self._transport.stop((self._topic("bye"), seal("bye", Bye(self._farewell))))

    def _restore(self) -> None:
        record = self._finished.load()
        if record is not None:
            log.info("assignment %s is trained and not acknowledged yet", record.order.assignment_id[:12])
            now = time.monotonic()
            deadline = now + record.order.deadline_s if record.order.deadline_s > 0 else 0.0
            self._work = _Work(record.order, _identity(record.order), now, deadline)
            self._work.uploader = self._new_uploader(record.report)
            self._machine.move("restored")

    def _take(self, event: Event | TrainerEvent | Stop) -> None:
        match event:
            case Connected():
                self._is_connected = True
                self._hello()
                self._resume_transfers()
            case Disconnected():
                self._is_connected = False
            case Received(payload=payload):
                self._receive(payload)
            case TrainerSaid():
                self._trainer_said(event)
            case TrainerEnded(reason=reason):
                self._trainer_ended(reason)
            case Stop(reason=reason):
                self._farewell = reason
                self._machine.move("stop")

    # hello

    def _hello(self) -> None:
        if not (self._is_connected and self._local.is_complete):
            return
        self._idle_rss_bytes = self._idle_rss_bytes or rss_bytes()
        hello = Hello(
            device=self._settings.device,
            agent_version=VERSION,
            profile=self._profile(),
            runtimes=self._local.runtimes,
            num_examples=self._local.num_examples,
            data_error=self._local.error,
            state=self._machine.state,
            assignment_id=self._work.order.assignment_id if self._work else "",
        )
        self._send("hello", hello)

    def _profile(self) -> DeviceProfile:
        return probe(
            self._settings.device,
            budget_bytes=self._settings.budget_bytes,
            storage=self._store.root,
            supervisor_idle_bytes=self._idle_rss_bytes,
            trainer_idle_bytes={name: self._local.idle_bytes for name in self._local.runtimes},
        )

    def _receive(self, payload: bytes) -> None:
        try:
            envelope = unseal(payload)
            self._dispatch(envelope)
        except MessageRejected as error:
            log.warning("message of %d bytes ignored: %s", len(payload), error)
            self._send("error", Error(error.code, str(error)))

    def _dispatch(self, envelope: Envelope) -> None:
        match envelope.kind:
            case "order":
                self._ordered(envelope.read(WorkOrder))
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
            case kind:
                log.info("message of kind %r ignored", kind)

    # order

    def _ordered(self, order: WorkOrder) -> None:
        if (order.federation, order.device) != (self._settings.federation, self._settings.device):
            raise MessageRejected(
                f"order is for {order.federation}/{order.device}, this is "
                f"{self._settings.federation}/{self._settings.device}"
            )
        topics.check_name(order.assignment_id, what="assignment id")
        now = time.monotonic()
        deadline_at = now + order.deadline_s if order.deadline_s > 0 else 0.0
        identity = _identity(order)
        if self._work is not None and self._work.identity == identity:
            self._work.deadline_at = deadline_at
            self._send("accept", Accept(order.assignment_id))
            return
        refusal = self._refusal(order, identity)
        if refusal is not None:
            log.info("order %s refused: %s", order.assignment_id[:12], refusal.reason)
            self._send("refuse", refusal)
            return
        if self._work is not None:
            self._drop(f"order {order.assignment_id[:12]} of round {order.round} takes its place")
        self._machine.move("order")
        self._work = _Work(order, identity, now, deadline_at, needed_bytes=order.peak_bytes)
        self._send("accept", Accept(order.assignment_id))
        self._fetch(self._work, now)

    def _refusal(self, order: WorkOrder, identity: str) -> Refuse | None:
        if identity in self._crashed_for_good:
            return self._crashed_for_good[identity]
        if self._local.error:
            self.trainer.send(Describe(self._settings.data))  # the owner may have mended it
            return Refuse(assignment_id=order.assignment_id, code=self._local.error_code, reason=self._local.error)
        return self._over_budget(order, order.peak_bytes)

    def _over_budget(self, order: WorkOrder, needed_bytes: int) -> Refuse | None:
        budget = self._settings.budget_bytes
        if not budget or needed_bytes <= budget:
            return None
        return Refuse(
            assignment_id=order.assignment_id,
            code=DeviceRefused.code,
            reason=f"device {self._settings.device}, round {order.round}: the order needs {needed_bytes} bytes, the "
            f"budget is {budget}; plan a smaller cut",
            needed_bytes=needed_bytes,
            budget_bytes=budget,
        )

    # fetch

    def _fetch(self, work: _Work, now: float) -> None:
        self._store.unpin_all()
        work.fetcher = Fetcher(self._store, lambda get: self._send("get", get, qos=0))
        self._attempt(lambda: self._want(work, [work.order.artifact], now))

    def _want(self, work: _Work, refs: list[BlobRef], now: float) -> None:
        assert work.fetcher is not None
        for ref in refs:
            work.fetcher.want(ref, now)
        self._go_on_fetching(work, now)

    def _block(self, block: Block) -> None:
        work, now = self._work, time.monotonic()
        if work is None or work.fetcher is None or self._machine.state != "fetching":
            return
        fetcher = work.fetcher

        def take() -> None:
            try:
                fetcher.received(block, now)
            except MessageRejected as error:
                self._send("error", Error(error.code, str(error), block.digest[:64]))
                return
            self._go_on_fetching(work, now)

        self._attempt(take)

    def _go_on_fetching(self, work: _Work, now: float) -> None:
        assert work.fetcher is not None
        if not work.fetcher.is_done:
            return
        if work.manifest is None:
            work.manifest = self._read_manifest(work.order)
            files = [BlobRef(file.sha256, file.size, "raw", file.size) for file in work.manifest.files]
            self._want(work, [*files, work.order.weights], now)
            return
        if not work.needed_bytes:
            work.needed_bytes = predict_process_peak(
                supervisor_idle_bytes=self._idle_rss_bytes,
                trainer_idle_bytes=self._local.idle_bytes,
                artifact_peak_bytes=work.manifest.cost.predicted_peak_bytes,
            )
            refusal = self._over_budget(work.order, work.needed_bytes)
            if refusal is not None:
                self._give_up(refusal)
                return
        self._store.reserve(sum(work.manifest.tensor(name).byte_count() for name in work.order.upload))
        work.waiting = waiting_reason(self._profile(), needed_bytes=work.needed_bytes)
        self._machine.move("hold" if work.waiting else "fetched")
        if not work.waiting:
            self._train(work)

    def _read_manifest(self, order: WorkOrder) -> ArtifactManifest:
        manifest = ArtifactManifest.from_bytes(self._store.path(order.artifact.digest).read_bytes())
        if manifest.runtime != self._settings.runtime:
            raise DeviceRefused(
                f"artifact is for runtime '{manifest.runtime}', this device trains with '{self._settings.runtime}'; "
                "order another artifact"
            )
        return manifest

    # train

    def _train(self, work: _Work) -> None:
        assert work.manifest is not None
        order = work.order
        if self.trainer.artifact not in ("", order.artifact.digest):
            self.trainer.end()
        update = self._finished.update_path(order.assignment_id)
        self.trainer.send(
            Train(
                order=order,
                manifest=str(self._store.path(order.artifact.digest)),
                files={file.name: str(self._store.path(file.sha256)) for file in work.manifest.files},
                weights=str(self._store.path(order.weights.digest)),
                data=self._settings.data,
                update=str(update.with_name("update.tmp")),
                threads=min(order.threads, self._settings.threads or order.threads),
                progress_s=self._settings.heartbeat_s / 2,
                self_test=self._settings.self_test,
            )
        )
        self.trainer.artifact = order.artifact.digest

    def _trainer_said(self, event: TrainerSaid) -> None:
        self._trainer_used_at = time.monotonic()
        reply = event.reply
        if isinstance(reply, Ready):
            self._local.runtimes = {reply.runtime: reply.version}
            return
        if isinstance(reply, Described):
            known, self._local.is_complete = self._local.is_complete, True
            changed = (reply.num_examples, reply.error) != (self._local.num_examples, self._local.error)
            self._local.num_examples, self._local.idle_bytes = reply.num_examples, reply.rss_bytes
            self._local.error_code, self._local.error = reply.code, reply.error
            if changed or not known:
                self._hello()
            return
        work = self._work
        if work is None or reply.assignment_id != work.order.assignment_id or self._machine.state != "training":
            return
        match reply:
            case Progress():
                work.progress = reply
            case Trained():
                self._trained(work, reply)
            case Failed(code=code, reason=reason):
                self._give_up(Refuse(assignment_id=work.order.assignment_id, code=code, reason=reason))

    def _trainer_ended(self, reason: str) -> None:
        if not self._local.is_complete:
            raise ConfigError([f"runtime: a trainer for '{self._settings.runtime}' cannot start here: {reason}"])
        work = self._work
        if work is None or self._machine.state != "training":
            log.warning("the idle trainer ended: %s", reason)
            return
        work.crashes += 1
        if work.crashes == 1:
            # A killed trainer costs time, not the result: the order determines it, so it is begun again, once.
            log.warning("the trainer crashed (%s), starting the order again", reason)
            self._train(work)
            return
        refusal = Refuse(
            assignment_id=work.order.assignment_id,
            code="trainer-crashed",
            reason=f"device {self._settings.device}, round {work.order.round}: the trainer crashed twice, last with "
            f"{reason}; plan a smaller cut or look at the device's log",
            needed_bytes=work.needed_bytes,
            budget_bytes=self._settings.budget_bytes,
        )
        self._crashed_for_good[work.identity] = refusal
        self._give_up(refusal)

    # upload

    def _trained(self, work: _Work, done: Trained) -> None:
        supervisor_peak = peak_rss_bytes()
        budget = self._settings.budget_bytes
        assert work.fetcher is not None
        report = TrainReport(
            assignment_id=work.order.assignment_id,
            device=self._settings.device,
            round=work.order.round,
            num_examples=done.num_examples,
            steps=done.steps,
            loss=done.loss,
            metrics=done.metrics,
            step_ms_p50=done.step_ms_p50,
            step_ms_p95=done.step_ms_p95,
            trainer_peak_bytes=done.peak_bytes,
            supervisor_peak_bytes=supervisor_peak,
            trainer_idle_bytes=done.idle_bytes,
            budget_bytes=budget,
            over_budget=bool(budget) and supervisor_peak + done.peak_bytes > budget,
            torch_loaded=done.torch_loaded or is_torch_loaded(),
            runtime=self._settings.runtime,
            bytes_down=work.fetcher.bytes_down,
            bytes_up=done.encoded_size,
            update=BlobRef(done.digest, done.size, work.order.encoding, done.encoded_size),
            wall_s=time.monotonic() - work.accepted_at,
            temperature_c=temperature_c(),
        )
        update = self._finished.update_path(work.order.assignment_id)
        self._finished.save(FinishedRecord(work.order, report), update.with_name("update.tmp"))
        self._machine.move("trained")
        work.uploader = self._new_uploader(report)

    def _new_uploader(self, report: TrainReport) -> Uploader:
        path = self._finished.update_path(report.assignment_id)
        return Uploader(report, path, self._send, time.monotonic())

    def _granted(self, grant: Grant) -> None:
        if self._work is not None and self._work.uploader is not None:
            self._work.uploader.granted(grant, time.monotonic())

    def _resume_transfers(self) -> None:
        now = time.monotonic()
        if self._work is not None and self._work.fetcher is not None:
            self._work.fetcher.reconnected(now)
        if self._work is not None and self._work.uploader is not None:
            self._work.uploader.reconnected(now)

    # report and ack

    def _acknowledged(self, ack: Ack) -> None:
        if self._work is None or ack.assignment_id != self._work.order.assignment_id:
            return
        if self._machine.state != "uploading":
            self._drop(f"the coordinator has settled it: {ack.code} {ack.reason}")
            return
        if not ack.accepted:
            log.warning("assignment %s was rejected: %s %s", ack.assignment_id[:12], ack.code, ack.reason)
        self._finished.forget(ack.assignment_id)
        self._work = None
        self._machine.move("acked")
        if self._settings.once:
            self.stop("done")

    def _told_of_error(self, error: Error) -> None:
        log.warning("the coordinator says %s: %s (%s)", error.code, error.message, error.about[:64])
        work = self._work
        if work is not None and work.fetcher is not None and work.fetcher.is_fetching(error.about):
            self._give_up(Refuse(assignment_id=work.order.assignment_id, code=error.code, reason=error.message))

    # what time brings

    def _tick(self, now: float) -> None:
        if self._machine.state == "stopping":
            return
        parent = self._settings.parent_pid
        if parent and not _is_alive(parent):
            self.stop("parent process ended")
        work = self._work
        if work is not None and work.deadline_at and now >= work.deadline_at:
            self._give_up(
                Refuse(
                    assignment_id=work.order.assignment_id,
                    code="deadline-expired",
                    reason=f"round {work.order.round}: {self._machine.state} when its time was over; allow more",
                )
            )
        elif work is not None and self._is_connected:
            if work.fetcher is not None and self._machine.state == "fetching":
                work.fetcher.tick(now)
            if work.uploader is not None:
                work.uploader.tick(now)
        if work is not None and self._machine.state == "waiting" and now >= self._conditions_at:
            self._conditions_at = now + CONDITIONS_S
            work.waiting = waiting_reason(self._profile(), needed_bytes=work.needed_bytes)
            if not work.waiting:
                self._machine.move("resume")
                self._train(work)
        is_unused = self._machine.state == "idle" and self.trainer.is_running and self._local.is_complete
        if is_unused and now - self._trainer_used_at > self._settings.idle_trainer_s:
            self.trainer.end()
        if now >= self._heartbeat_at and self._local.is_complete:
            self._heartbeat_at = now + self._settings.heartbeat_s
            self._heartbeat()

    def _heartbeat(self) -> None:
        work = self._work
        progress = work.progress if work is not None else None
        self._send(
            "heartbeat",
            Heartbeat(
                state=self._machine.state,
                assignment_id=work.order.assignment_id if work is not None else "",
                step=progress.step if progress is not None else 0,
                total_steps=progress.total_steps if progress is not None else 0,
                loss=progress.loss if progress is not None else None,
                reason=work.waiting if work is not None else "",
            ),
        )

    def _attempt(self, step: Any) -> None:
        """Do ``step`` of the assignment in hand; a failure that is not the message's own ends the assignment."""
        assert self._work is not None
        try:
            step()
        except ApportionError as error:
            self._give_up(Refuse(assignment_id=self._work.order.assignment_id, code=error.code, reason=str(error)))

    def _give_up(self, refusal: Refuse) -> None:
        self._send("refuse", refusal)
        self._drop(refusal.reason)

    def _drop(self, reason: str) -> None:
        assert self._work is not None
        work, self._work = self._work, None
        log.info("assignment %s dropped: %s", work.order.assignment_id[:12], reason)
        if work.fetcher is not None:
            work.fetcher.close()
        if self._machine.state == "training":
            self.trainer.kill()
        self._finished.forget(work.order.assignment_id)
        self._machine.move("dropped")

    def _send(self, kind: str, body: Any, qos: Qos = 1, message_id: str | None = None) -> None:
        # Without a connection nothing is queued: hello and the repeated messages say it all again afterwards.
        if self._is_connected:
            self._transport.publish(self._topic(kind), seal(kind, body, message_id=message_id), qos=qos)

    def _topic(self, kind: str) -> str:
        return topics.up(self._settings.federation, self._settings.device, kind)


def _identity(order: WorkOrder) -> str:
    return hashlib.sha256(encode_msgpack(msgspec.structs.replace(order, deadline_s=0.0))).hexdigest()


def _is_alive(pid: int) -> bool:
    if os.getppid() == pid:
        return True
    try:
        state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
    except OSError:
        return False
    return state not in (b"Z", b"X")
