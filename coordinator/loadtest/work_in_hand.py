"""An order that a light device has in hand: what has come of its weights, what has gone of its update."""

from __future__ import annotations

from dataclasses import dataclass, field

from edge.contracts.plan import WorkOrder
from edge.contracts.report import TrainReport
from edge.transport.blocks import Download, Upload


@dataclass
class WorkInHand:
    """One order; ``download`` while the weights come, ``upload`` from the moment that the update is made.

    Attributes:
        sent_before, received_before: bytes of the device's sockets when the order came.
        pieces: of the weights, as long as no other device of the process has them.
        offered_at, reported_at: when what is not answered yet was first said.
        cut_at: shares of transfers, each way, at which the link was cut already.
    """

    order: WorkOrder
    sent_before: int
    received_before: int
    download: Download | None = None
    pieces: list[bytes] = field(default_factory=list)
    is_whole: bool = True
    upload: Upload | None = None
    data: bytes = b""
    offered_at: float | None = None
    reported_at: float | None = None
    repeat_at: float = 0.0
    report: TrainReport | None = None
    report_id: str = ""
    cut_at: set[tuple[str, int]] = field(default_factory=set)
