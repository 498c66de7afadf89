"""The smallest masked sum that the owner of a device allows: held against each list of devices that it is told."""

from __future__ import annotations

from collections.abc import Callable

from edge.contracts.errors import MessageRejected, PolicyRefused
from edge.contracts.messages import Refuse


def check_cohort(assignment: str, count: int, least: int, send: Callable[..., None] | None = None) -> None:
    """Check that a masked sum of ``count`` devices is one of ``least``.

    Args:
        send: sends the refusal of the order, while it can be refused; the coordinator's answer ends it here.

    Raises:
        MessageRejected: it is of fewer.
    """
    if count >= least:
        return
    reason = f"$.privacy.min-cohort: {least}, the masked sum is of {count} devices"
    if send is not None:
        send("refuse", Refuse(assignment_id=assignment, code=PolicyRefused.code, reason=reason), 1, None, None)
    raise MessageRejected(reason)
