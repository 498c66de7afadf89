"""Control variates that a device keeps: which files of the device hold them, one for each update that may count.

A device does not learn which of its updates count, so it keeps what belongs to each under the update's assignment id,
and an order names the one that the next round goes on from. What no order can name any more is removed.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from edge.contracts.plan import WorkOrder
from edge.contracts.topics import check_name

ABILITY = "control-variates-1"
"""What a device that keeps them says in its hello."""
FOLDER = "control"


def kept_at(folder: Path, order: WorkOrder, assignment_id: str) -> Path:
    """Where a device whose state is in ``folder`` has the variates that the update of ``assignment_id`` left.

    Raises:
        MessageRejected: no assignment id.
    """
    run = hashlib.sha256(f"{order.federation}\n{order.run}".encode()).hexdigest()
    return folder / FOLDER / run / f"{check_name(assignment_id, what='assignment id')}.safetensors"


def remove_others(folder: Path, order: WorkOrder) -> None:
    """Remove the variates of ``order``'s run but those that the order goes on from, and those that it leaves."""
    kept = {kept_at(folder, order, name) for name in (order.assignment_id, order.variates_of) if name}
    for path in kept_at(folder, order, order.assignment_id).parent.iterdir():
        if path not in kept:
            path.unlink(missing_ok=True)
