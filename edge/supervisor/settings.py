"""What the owner of a device decides about its agent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from edge.contracts.envelope import Envelope
from edge.contracts.errors import MessageRejected
from edge.contracts.plan import WorkOrder
from edge.contracts.topics import check_name
from edge.identity.credentials import CertificateFiles
from edge.identity.trust import Trust
from edge.runtimes import DEFAULT
from edge.supervisor.conditions import ALWAYS, Conditions

if TYPE_CHECKING:
    import ssl

    from edge.policy.order_check import PolicyGuard


@dataclass(frozen=True, kw_only=True)
class AgentSettings:
    """Fixed for the life of an agent.

    Attributes:
        data: where the device's examples are (:mod:`edge.training.local_data`).
        python: interpreter that runs the trainer; runtimes may live in environments of their own.
        budget_bytes: what supervisor and trainer may reach together; 0 = no limit.
        threads: most intra-op threads an order gets; 0 = as ordered.
        parent_pid: end within seconds of that process; 0 = none.
        once: end after the first acknowledged assignment.
        self_test: repeat an artifact's self-test before its first use.
        idle_trainer_s: an unused trainer is ended after this long.
        conditions: when the device may train; a training is paused while it may not.
        trust: keys one of which must have signed orders and manifests; None follows unsigned ones too.
        certificate: this device's own, which is renewed in time; None without one.
        policy: what the owner lets the device be asked; None: anything.
        tags: groups that the device belongs to, for runs that ask for some.
        alive_file: touched while the agent's loop turns; None without one.
        bulk_tls: checks whoever serves blobs over HTTPS; None has them over MQTT only.
    """

    federation: str
    device: str
    data: str
    python: str
    runtime: str = DEFAULT
    budget_bytes: int = 0
    threads: int = 0
    parent_pid: int = 0
    once: bool = False
    self_test: bool = False
    heartbeat_s: float = 5.0
    idle_trainer_s: float = 30.0
    conditions: Conditions = ALWAYS
    trust: Trust | None = None
    certificate: CertificateFiles | None = None
    policy: PolicyGuard | None = None
    tags: tuple[str, ...] = ()
    bulk_tls: Callable[[], ssl.SSLContext] | None = None
    alive_file: Path | None = None

    @property
    def min_cohort(self) -> int:
        """Devices whose masked updates are in a sum, at least."""
        return 0 if self.policy is None else self.policy.policy.privacy.min_cohort

    def features_bytes(self, room: int) -> int:
        """What features of frozen blocks may take on disk, where there is ``room`` for as many bytes."""
        most = None if self.policy is None else self.policy.policy.disk.features_bytes
        return room if most is None else min(room, most)

    def read_order(self, envelope: Envelope) -> WorkOrder:
        """The order in ``envelope``, for this device, signed by a trusted key where there are any.

        Raises:
            MessageRejected: it is for another one, or has an unusable id; also SignatureRejected.
        """
        order = envelope.read(WorkOrder)
        self.check_addressee(order)
        if self.trust is not None:
            self.trust.check_order(order, bytes(envelope.body), envelope.signature)
        return order

    def check_addressee(self, order: WorkOrder) -> None:
        """Check that ``order`` is for this device and its id can name a folder.

        Raises:
            MessageRejected: it is for another one, or has an unusable id.
        """
        if (order.federation, order.device) != (self.federation, self.device):
            raise MessageRejected(
                f"order is for {order.federation}/{order.device}, this is {self.federation}/{self.device}"
            )
        check_name(order.assignment_id, what="assignment id")
