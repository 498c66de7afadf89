"""What the owner of a site decides about its relay."""

from __future__ import annotations

from dataclasses import dataclass

from edge.contracts.envelope import Envelope
from edge.contracts.errors import MessageRejected
from edge.contracts.plan import WorkOrder
from edge.contracts.topics import check_name
from edge.identity.trust import Trust
from edge.relay.site_key import SiteKey
from edge.runtimes import DEFAULT


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
