"""What a light device has in hand, and what it says of itself: zeros where a device would have measured."""

from __future__ import annotations

from dataclasses import dataclass, field

from coordinator.loadtest.stand_in import NAME
from edge.contracts.messages import AgentState, Hello
from edge.contracts.plan import BlobRef, WorkOrder
from edge.contracts.report import TrainReport
from edge.transport.blocks import Download, Upload
from profiles.device import DeviceProfile

AGENT_VERSION = "load device"
NUM_EXAMPLES = 32
_MIB, _GIB = 1 << 20, 1 << 30


def hello_of(device: str, runtimes: dict[str, str], state: AgentState, assignment_id: str) -> Hello:
    """The hello of a light device: enough memory for whatever is ordered, no owner's budget."""
    profile = DeviceProfile(
        device=device,
        ram_bytes=4 * _GIB,
        free_ram_bytes=2 * _GIB,
        cpu_count=4,
        cpu_model=AGENT_VERSION,
        machine="none",
        supervisor_idle_bytes=40 * _MIB,
        trainer_idle_bytes=dict.fromkeys(runtimes, 60 * _MIB),
        runtimes=runtimes,
    )
    return Hello(
        device=device,
        agent_version=AGENT_VERSION,
        profile=profile,
        runtimes=runtimes,
        num_examples=NUM_EXAMPLES,
        state=state,
        assignment_id=assignment_id,
    )


def report_of(order: WorkOrder, update: BlobRef) -> TrainReport:
    """The report of an order that was answered with ``update``."""
    return TrainReport(
        assignment_id=order.assignment_id,
        device=order.device,
        round=order.round,
        num_examples=NUM_EXAMPLES,
        steps=0,
        loss=0.0,
        metrics={},
        step_ms_p50=0.0,
        step_ms_p95=0.0,
        trainer_peak_bytes=0,
        supervisor_peak_bytes=0,
        trainer_idle_bytes=0,
        budget_bytes=0,
        over_budget=False,
        torch_loaded=False,
        runtime=NAME,
        bytes_down=order.weights.size,
        bytes_up=update.size,
        update=update,
        wall_s=0.0,
        labels=(0,) if order.report_labels else None,
    )


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
