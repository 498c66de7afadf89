"""A device's side of masks without the rest of the device: what it was told, and what it has sent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from edge.contracts.envelope import seal, unseal
from edge.contracts.masking import Masking
from edge.contracts.plan import WorkOrder, assignment_id
from edge.identity.trust import Trust
from edge.supervisor.masked_round import Masker
from tests.contracts.samples import ORDER

MASKING = Masking(step=1e-6, largest=400_000_000, max_weight=100)
NAMES = ("d0", "d1", "d2", "d3", "d4")
THRESHOLD = 3


class Device:
    """A masker and what it has sent, by kind."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name, self.folder = name, folder
        self.order = order_of(name)
        self.sent: dict[str, Any] = {}
        self.masker = self.started()

    def started(self) -> Masker:
        """As after a start of the agent."""
        return Masker(self.folder, lambda kind, body, qos, identity, sign: self.sent.__setitem__(kind, body))

    def signs(self) -> None:
        """From here on both sides sign; what is told is believed all the same."""
        believing = Trust([])
        believing.check_masking = lambda kind, body, signature: None  # type: ignore[method-assign]
        self.masker._trust, self.masker._sign = believing, lambda text: b"s" * 64  # type: ignore[assignment]

    def tell(self, kind: str, body: msgspec.Struct) -> None:
        self.masker.received(unseal(seal(kind, body)))


def order_of(device: str) -> WorkOrder:
    identity = assignment_id("fed", 0, device, 0)
    return msgspec.structs.replace(
        ORDER, assignment_id=identity, federation="fed", device=device, round=0, attempt=0, run="", masking=MASKING
    )
