"""An order that is never done, for what happens to a device at work."""

from __future__ import annotations

import time

from coordinator.conformance.findings import expect
from coordinator.conformance.kit import Job, Kit
from edge.contracts.plan import Schedule

ENDLESS = Schedule(steps=2_000_000)


def running(kit: Kit) -> tuple[Job, int]:
    """An order that the agent is training and will not finish, and the mark before it."""
    job = kit.job("masked", schedule=ENDLESS)
    mark = kit.order(job)
    kit.answer(job, "accept", since=mark)
    give_up_at = time.monotonic() + 60 * kit.patience
    while (hello := kit.asked()).state != "training":
        expect(time.monotonic() < give_up_at, f"still {hello.state} after a minute")
        time.sleep(0.1)
    expect(hello.assignment_id == job.id, f"the hello names {hello.assignment_id!r} in hand")
    return job, mark
