"""The assignment in hand: its order, how far it is, and the messages that follow from it."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from edge.contracts.codec import encode_msgpack
from edge.contracts.errors import DeadlineExpired, DeviceRefused, PolicyRefused
from edge.contracts.manifest import ArtifactManifest
from edge.contracts.messages import AgentState, Get, Refuse
from edge.contracts.packing import KEPT
from edge.contracts.plan import BlobRef, WorkOrder
from edge.contracts.report import NATIVE, TrainReport
from edge.masking.keys import is_able
from edge.masking.seeds import MaskSeeds
from edge.supervisor.conditions import Condition
from edge.supervisor.finished_work import FinishedWork
from edge.supervisor.settings import AgentSettings
from edge.supervisor.trainer_messages import Progress, Train, Trained
from edge.system.energy import EnergyMeter
from edge.system.meter import is_torch_loaded, peak_rss_bytes
from edge.transfer.artifact_store import ArtifactStore
from edge.transfer.fetcher import OrderFetch
from edge.transfer.uploader import Send, Uploader
from edge.transport.base import Event
from profiles.device import DeviceProfile
from profiles.memory import predict_process_peak
from profiles.probe import heat_and_charge


@dataclass
class Assignment:
    """One order from acceptance to acknowledgement.

    Attributes:
        identity: tells a repeated order from another one under the same assignment id.
        deadline_at: on the monotonic clock; 0 = none.
        needed_bytes: what both processes are expected to reach; 0 until known.
        ceiling_bytes: what the device has for both processes; 0 until known.
        crashes: trainers that died over it.
        waiting_for, waiting: the condition it waits for, and a sentence with its values; None and empty: none.
        masks: of a masked order, once they are agreed on.
        energy: since its training began; the trainer without Python looks at no counter.
    """

    order: WorkOrder
    identity: str
    accepted_at: float
    deadline_at: float
    needed_bytes: int = 0
    ceiling_bytes: int = 0
    crashes: int = 0
    progress: Progress | None = None
    waiting: str = ""
    waiting_for: Condition | None = None
    fetch: OrderFetch | None = None
    uploader: Uploader | None = None
    masks: MaskSeeds | None = None
    energy: EnergyMeter | None = None

    @classmethod
    def taken(cls, order: WorkOrder) -> Assignment:
        """``order``, its time running from now."""
        now = time.monotonic()
        return cls(order, order_identity(order), now, deadline_of(order, now), needed_bytes=order.peak_bytes)

    def is_expired(self, now: float) -> bool:
        """Whether its time is over."""
        return self.deadline_at > 0 and now >= self.deadline_at

    def start_fetch(
        self, settings: AgentSettings, store: ArtifactStore, send: Send, deliver: Callable[[Event], None]
    ) -> None:
        """Begin to bring everything the order needs into ``store``, blocks over HTTPS given to ``deliver``.

        Raises:
            ApportionError: as :meth:`edge.transfer.fetcher.OrderFetch.start`.
        """

        def ask(get: Get) -> None:
            send("get", get, 0, None)

        chosen: Callable[[Get], None] = ask
        if self.order.bulk and settings.bulk_tls is not None:
            from edge.transport.range_requests import RangeRequests  # 2 MB that most agents never need

            chosen = RangeRequests(self.order.bulk, settings.bulk_tls, deliver=deliver, fallback=ask)
        allow = None if settings.policy is None else settings.policy.took(self.order, store.has)
        self.fetch = OrderFetch(
            self.order, store, runtime=settings.runtime, ask=chosen, trust=settings.trust, allow=allow
        )
        self.fetch.start(time.monotonic())

    def start_upload(
        self,
        settings: AgentSettings,
        report: TrainReport,
        finished: FinishedWork,
        send: Send,
        deliver: Callable[[Event], None],
    ) -> None:
        """Begin to offer the encoded update, grants over HTTPS given to ``deliver``."""
        update, pieces = finished.update_path(report.assignment_id), None
        if settings.policy is not None:
            settings.policy.uploads(report.assignment_id, report.update.encoded_size)
        if self.order.upload_to and settings.bulk_tls is not None:
            from edge.transport.put_requests import PutRequests  # 2 MB that most agents never need

            url, ref = self.order.upload_to + report.assignment_id, report.update
            pieces = PutRequests(url, settings.bulk_tls, report.assignment_id, ref, update, deliver=deliver)
        self.uploader = Uploader(report, update, send, time.monotonic(), pieces)

    def complete_manifest(self) -> ArtifactManifest | None:
        """The manifest once everything the order needs is in the store; before that None."""
        return None if self.fetch is None else self.fetch.complete_manifest()

    def close(self) -> None:
        """End what it fetches; what has arrived stays."""
        if self.fetch is not None:
            self.fetch.close()

    def is_fetching(self, digest: str) -> bool:
        """Whether blob ``digest`` is wanted and not here yet."""
        return self.fetch is not None and self.fetch.is_fetching(digest)

    def ordered_again(self, order: WorkOrder, now: float) -> None:
        """``order`` is this one, with other seconds left; an update that is ready is offered again at once."""
        self.deadline_at = deadline_of(order, now)
        if self.uploader is not None:
            self.uploader.reconnected(now)

    def reconnected(self, now: float) -> None:
        """Whatever was on its way when the connection broke is asked for or offered again."""
        if self.fetch is not None:
            self.fetch.reconnected(now)
        if self.uploader is not None:
            self.uploader.reconnected(now)

    def tick(self, state: AgentState, now: float) -> None:
        """Send what is due of the transfer that belongs to ``state``."""
        if state == "fetching" and self.fetch is not None:
            self.fetch.tick(now)
        elif state == "uploading" and self.uploader is not None:
            self.uploader.tick(now)

    def refusal(self, code: str, reason: str, *, budget_bytes: int = 0) -> Refuse:
        """A refusal of this assignment."""
        return Refuse(
            assignment_id=self.order.assignment_id,
            code=code,
            reason=reason,
            needed_bytes=self.needed_bytes,
            budget_bytes=budget_bytes,
        )

    def update_bytes(self, manifest: ArtifactManifest) -> int:
        """Size of the tensors the update will hold, masked ones taken whole.

        Raises:
            PlanError: one of them is not in the manifest.
        """
        return sum(manifest.tensor(name.removesuffix(KEPT)).byte_count() for name in self.order.upload)

    def crash_refusal(self, reason: str, settings: AgentSettings) -> Refuse:
        """The refusal when the trainer crashed once too often; ``reason`` names the last signal."""
        return self.refusal(
            "trainer-crashed",
            f"device {settings.device}, round {self.order.round}: the trainer crashed {self.crashes} times, last with "
            f"{reason}; plan a smaller cut or look at the device's log",
            budget_bytes=settings.budget_bytes,
        )

    def expiry(self, state: AgentState) -> Refuse:
        """The refusal when its time is over."""
        reason = (
            f"device {self.order.device}, round {self.order.round}: still {state} when its time was over; allow more"
        )
        return self.refusal(DeadlineExpired.code, reason)

    def estimate(self, manifest: ArtifactManifest, profile: DeviceProfile, runtime: str, *, is_native: bool) -> None:
        """Predict what the processes will reach from the manifest, when the order did not say, and what they may.

        Args:
            is_native: the trainer without Python will carry the order out. Where another has to though the device has
                one, the plan may have counted on it, and what the order said is no longer enough.
        """
        self.ceiling_bytes = profile.ceiling_bytes
        known = profile.for_native_orders() if is_native else profile
        predicted = predict_process_peak(
            supervisor_idle_bytes=profile.supervisor_idle_bytes,
            trainer_idle_bytes=known.trainer_idle_bytes.get(runtime, 0),
            artifact_peak_bytes=manifest.cost.predicted_peak_bytes,
        )
        is_other = not is_native and profile.native_idle_bytes is not msgspec.UNSET
        self.needed_bytes = max(self.needed_bytes, predicted) if is_other else self.needed_bytes or predicted

    def forbidden(self, settings: AgentSettings, store: ArtifactStore) -> Refuse | None:
        """The refusal of an order that the owner's policy does not allow, else None."""
        try:
            if settings.policy is not None:
                settings.policy.check_order(self.order, store.has)
        except PolicyRefused as error:
            return self.refusal(error.code, str(error))
        return None

    def unable(self) -> Refuse | None:
        """The refusal of an order whose masks this device cannot make, else None."""
        if self.order.masking is None or is_able():
            return None
        return self.refusal("masking-missing", "masked updates need the library cryptography: the extra identity")

    def over_budget(self, settings: AgentSettings) -> Refuse | None:
        """The refusal when more memory is needed than the owner allows or the device has, else None."""
        budget = min(filter(None, (settings.budget_bytes, self.ceiling_bytes)), default=0)
        if not budget or self.needed_bytes <= budget:
            return None
        limit = "the budget is" if budget == settings.budget_bytes else "the device's memory or its limit is"
        reason = (
            f"device {settings.device}, round {self.order.round}: the order needs {self.needed_bytes} bytes, "
            f"{limit} {budget}; plan a smaller cut"
        )
        return self.refusal(DeviceRefused.code, reason, budget_bytes=budget)

    def train_request(
        self, settings: AgentSettings, store: ArtifactStore, manifest: ArtifactManifest, finished: FinishedWork
    ) -> Train:
        """What the trainer is asked, once every blob is in the store."""
        order, tokenizer = self.order, self.order.tokenizer_blob
        return Train(
            order=order,
            manifest=str(store.path(order.artifact.digest)),
            files={file.name: str(store.path(file.sha256)) for file in manifest.files},
            weights=str(store.path(order.weights.digest)),
            constants="" if order.constants is None else str(store.path(order.constants.digest)),
            data=settings.data,
            update=str(finished.new_update_path(order.assignment_id)),
            left_over=str(finished.left_over_path(order)),
            new_left_over=str(finished.new_left_over_path(order) or ""),
            personal=str(finished.personal_path(order)),
            new_personal=str(finished.new_personal_path(order) or ""),
            new_tuned=str(finished.new_tuned_path(order) or ""),
            variates=str(finished.variates_path(order) or ""),
            new_variates=str(finished.new_variates_path(order) or ""),
            threads=min(order.threads, settings.threads or order.threads),
            progress_s=settings.heartbeat_s / 2,
            self_test=settings.self_test,
            kept=str(store.symbols),
            features=str(store.features) if manifest.specs("features") else "",
            features_bytes=settings.features_bytes(store.features_room()) if manifest.specs("features") else 0,
            features_key=str(settings.certificate.key) if settings.certificate and manifest.specs("features") else "",
            tokenizer="" if tokenizer is None else str(store.path(tokenizer.digest)),
            masks=self.masks,
        )

    def report(self, settings: AgentSettings, done: Trained, *, is_native: bool = False) -> TrainReport:
        """What the coordinator is told about a finished training, by the trainer without Python or the other one."""
        supervisor_peak, budget = peak_rss_bytes(), settings.budget_bytes
        temperature, battery = heat_and_charge()
        joules = self.energy.spent().joules if is_native and self.energy is not None else done.joules
        return TrainReport(
            assignment_id=self.order.assignment_id,
            device=settings.device,
            round=self.order.round,
            num_examples=done.num_examples,
            steps=done.steps,
            loss=done.loss,
            metrics=done.metrics,
            step_ms_p50=done.step_ms_p50,
            step_ms_p95=done.step_ms_p95,
            trainer_peak_bytes=done.peak_bytes,
            supervisor_peak_bytes=supervisor_peak,
            # Without Python it allows for what any step touches; an order of none may touch less.
            trainer_idle_bytes=min(done.idle_bytes, done.peak_bytes),
            budget_bytes=budget,
            over_budget=budget > 0 and supervisor_peak + done.peak_bytes > budget,
            torch_loaded=done.torch_loaded or is_torch_loaded(),
            runtime=settings.runtime,
            bytes_down=0 if self.fetch is None else self.fetch.bytes_down,
            bytes_up=done.encoded_size,
            update=BlobRef(done.digest, done.size, self.order.encoding, done.encoded_size),
            wall_s=time.monotonic() - self.accepted_at,
            temperature_c=temperature,
            battery_percent=battery,
            threads=done.threads,
            labels=done.labels,
            evaluation=msgspec.UNSET if done.evaluation is None else done.evaluation,
            cpu_s=done.cpu_s,
            joules=msgspec.UNSET if joules is None else joules,
            trainer=NATIVE if is_native else msgspec.UNSET,
        )


def order_identity(order: WorkOrder) -> str:
    """SHA-256 of all of ``order`` but its remaining time and its ticket: equal for a repeated order only."""
    bare = msgspec.structs.replace(order, deadline_s=0.0, bulk="", upload_to="")
    return hashlib.sha256(encode_msgpack(bare)).hexdigest()


def deadline_of(order: WorkOrder, now: float) -> float:
    """When the order's time is over on the monotonic clock; 0 when it has no end."""
    return now + order.deadline_s if order.deadline_s > 0 else 0.0
