"""The assignment in hand: its order, how far it is, and the messages that follow from it."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass

import msgspec

from edge.agent_settings import AgentSettings
from edge.artifact_store import ArtifactStore
from edge.contracts.codec import encode_msgpack
from edge.contracts.errors import DeadlineExpired, DeviceRefused
from edge.contracts.manifest import ArtifactManifest
from edge.contracts.messages import Refuse
from edge.contracts.plan import BlobRef, WorkOrder
from edge.contracts.report import TrainReport
from edge.fetcher import OrderFetch
from edge.meter import is_torch_loaded, peak_rss_bytes
from edge.trainer_messages import Progress, Train, Trained
from edge.uploader import Uploader
from profiles.probe import temperature_c


@dataclass
class Assignment:
    """One order from acceptance to acknowledgement.

    Attributes:
        identity: tells a repeated order from another one under the same assignment id.
        deadline_at: on the monotonic clock; 0 = none.
        needed_bytes: what both processes are expected to reach; 0 until known.
        crashes: trainers that died over it.
        waiting: what it waits for, or empty.
    """

    order: WorkOrder
    identity: str
    accepted_at: float
    deadline_at: float
    needed_bytes: int = 0
    crashes: int = 0
    progress: Progress | None = None
    waiting: str = ""
    fetch: OrderFetch | None = None
    uploader: Uploader | None = None

    @classmethod
    def taken(cls, order: WorkOrder) -> Assignment:
        """``order``, its time running from now."""
        now = time.monotonic()
        return cls(order, order_identity(order), now, deadline_of(order, now), needed_bytes=order.peak_bytes)

    def is_expired(self, now: float) -> bool:
        """Whether its time is over."""
        return self.deadline_at > 0 and now >= self.deadline_at

    def refusal(self, code: str, reason: str, *, budget_bytes: int = 0) -> Refuse:
        """A refusal of this assignment."""
        return Refuse(
            assignment_id=self.order.assignment_id,
            code=code,
            reason=reason,
            needed_bytes=self.needed_bytes,
            budget_bytes=budget_bytes,
        )

    def expiry(self, state: str) -> Refuse:
        """The refusal when its time is over."""
        reason = (
            f"device {self.order.device}, round {self.order.round}: still {state} when its time was over; allow more"
        )
        return self.refusal(DeadlineExpired.code, reason)

    def over_budget(self, settings: AgentSettings) -> Refuse | None:
        """The refusal when more memory is needed than the owner allows, else None."""
        budget = settings.budget_bytes
        if not budget or self.needed_bytes <= budget:
            return None
        reason = (
            f"device {settings.device}, round {self.order.round}: the order needs {self.needed_bytes} bytes, "
            f"the budget is {budget}; plan a smaller cut"
        )
        return self.refusal(DeviceRefused.code, reason, budget_bytes=budget)

    def train_request(
        self, settings: AgentSettings, store: ArtifactStore, manifest: ArtifactManifest, update: str
    ) -> Train:
        """What the trainer is asked, once every blob is in the store."""
        order = self.order
        return Train(
            order=order,
            manifest=str(store.path(order.artifact.digest)),
            files={file.name: str(store.path(file.sha256)) for file in manifest.files},
            weights=str(store.path(order.weights.digest)),
            data=settings.data,
            update=update,
            threads=min(order.threads, settings.threads or order.threads),
            progress_s=settings.heartbeat_s / 2,
            self_test=settings.self_test,
        )

    def report(self, settings: AgentSettings, done: Trained) -> TrainReport:
        """What the coordinator is told about a finished training."""
        supervisor_peak, budget = peak_rss_bytes(), settings.budget_bytes
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
            trainer_idle_bytes=done.idle_bytes,
            budget_bytes=budget,
            over_budget=budget > 0 and supervisor_peak + done.peak_bytes > budget,
            torch_loaded=done.torch_loaded or is_torch_loaded(),
            runtime=settings.runtime,
            bytes_down=0 if self.fetch is None else self.fetch.bytes_down,
            bytes_up=done.encoded_size,
            update=BlobRef(done.digest, done.size, self.order.encoding, done.encoded_size),
            wall_s=time.monotonic() - self.accepted_at,
            temperature_c=temperature_c(),
        )


def order_identity(order: WorkOrder) -> str:
    """SHA-256 of all of ``order`` but its remaining time: equal for a repeated order only."""
    return hashlib.sha256(encode_msgpack(msgspec.structs.replace(order, deadline_s=0.0))).hexdigest()


def deadline_of(order: WorkOrder, now: float) -> float:
    """When the order's time is over on the monotonic clock; 0 when it has no end."""
    return now + order.deadline_s if order.deadline_s > 0 else 0.0
