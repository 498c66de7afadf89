"""What the owner of a site decides about its relay."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edge.contracts.envelope import Envelope
from edge.contracts.errors import MessageRejected
from edge.contracts.messages import Get
from edge.contracts.plan import WorkOrder
from edge.contracts.report import TrainReport
from edge.contracts.topics import check_name
from edge.identity.trust import Trust
from edge.relay.site_key import SiteKey
from edge.runtimes import DEFAULT
from edge.transfer.artifact_store import ArtifactStore
from edge.transfer.fetcher import OrderFetch

if TYPE_CHECKING:
    from edge.policy.order_check import PolicyGuard


@dataclass(frozen=True, kw_only=True)
class RelaySettings:
    """Fixed for the life of a relay.

    Attributes:
        federation, device: which federation the relay belongs to, and its id there.
        site: federation name that the site's own devices are told.
        runtime: what every device of the site trains with; others are not served.
        min_devices: fewer updates than these are not passed on; until as many are here, the relay takes no order.
        least_budget_bytes: devices whose owners allow less are not served; 0 serves all.
        share: of the time that an order leaves, what the site's devices have; the rest is for the upload.
        away_s: a device unheard of for this long is not waited for.
        trust: keys one of which must have signed orders and manifests from above; None follows unsigned ones too.
        policy: what the site's owner lets the relay be asked; None: anything.
        key: signs the orders for the site's devices; None leaves them unsigned.
    """

    federation: str
    device: str
    site: str
    runtime: str = DEFAULT
    min_devices: int = 1
    least_budget_bytes: int = 0
    share: float = 0.8
    away_s: float = 60.0
    heartbeat_s: float = 5.0
    trust: Trust | None = None
    key: SiteKey | None = None
    policy: PolicyGuard | None = None

    def fetch(self, order: WorkOrder, store: ArtifactStore, ask: Callable[[Get], None]) -> OrderFetch:
        """What brings everything that ``order`` needs into ``store``; counted for the policy's day."""
        allow = None if self.policy is None else self.policy.took(order, store.has)
        return OrderFetch(order, store, runtime=self.runtime, ask=ask, trust=self.trust, allow=allow)

    def count_upload(self, report: TrainReport) -> None:
        """The site's update is about to be sent."""
        if self.policy is not None:
            self.policy.uploads(report.assignment_id, report.update.encoded_size)

    def read_order(self, envelope: Envelope) -> WorkOrder:
        """The order in ``envelope``, for this relay, signed by a trusted key where there are any.

        Raises:
            MessageRejected: it is for another one, or has an unusable id; also SignatureRejected.
        """
        order = envelope.read(WorkOrder)
        if (order.federation, order.device) != (self.federation, self.device):
            raise MessageRejected(
                f"order is for {order.federation}/{order.device}, this is {self.federation}/{self.device}"
            )
        check_name(order.assignment_id, what="assignment id")
        if self.trust is not None:
            self.trust.check_order(order, bytes(envelope.body), envelope.signature)
        return order
