"""A device that ran out of memory, or went over its budget, gets less from then on, whatever happens to us."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from coordinator.ledger.ledger import Ledger
from coordinator.planning.planner import MB
from coordinator.rounds.placement import history_of, place_device
from edge.contracts.messages import Refuse
from edge.contracts.plan import WorkOrder
from tests.federation.hostile_device import HostileDevice
from tests.federation.in_process import InProcessFederation
from tests.federation.small_run import config_text

pytestmark = [pytest.mark.runtime, pytest.mark.slow]

BUDGET = 65 * MB
"""Idle sizes of 20 and 40 million bytes and 4 MB of transfers leave 3.8 MB."""


def text(planner: str = "micro-batches = false\nrecompute = false") -> str:
    plain = config_text(local=0, size=1, min_reports=1, rounds=3)
    assert "levels = [4]" in plain
    return plain.replace("levels = [4]", "levels = [1, 4]") + f"\n[planner]\n{planner}\n"


def out_of_memory(device: HostileDevice, order: WorkOrder) -> None:
    """As an agent says it whose trainer the kernel killed."""
    refusal = Refuse(
        assignment_id=order.assignment_id,
        code="out-of-memory",
        reason="killed",
        needed_bytes=order.peak_bytes,
        budget_bytes=BUDGET,
        peak_bytes=BUDGET - MB,
    )
    device.send("refuse", refusal)


def over_budget(device: HostileDevice, order: WorkOrder) -> None:
    """The work is done, in more memory than the owner allows."""
    update = device.upload(order, device.update(order))
    device.report(
        order, update, over_budget=True, budget_bytes=BUDGET, trainer_peak_bytes=50 * MB, supervisor_peak_bytes=20 * MB
    )


def levels(stage: InProcessFederation) -> list[str]:
    return [
        entry.level
        for attempt in stage.ledger.rounds.all()
        for entry in stage.ledger.assignments.of_attempt(attempt.round, attempt.attempt)
    ]


@pytest.mark.parametrize(
    ("fails", "code", "peak"), [(out_of_memory, "out-of-memory", BUDGET - MB), (over_budget, "over-budget", 70 * MB)]
)
def test_device_gets_a_smaller_cut_after_a_setback(
    fails: Callable[[HostileDevice, WorkOrder], None], code: str, peak: int, tmp_path: Path, exports: Path
) -> None:
    device: HostileDevice

    def behave(order: WorkOrder) -> None:
        if len(device.acks) == 0:
            fails(device, order)
            device.wait_ack(order)
        else:
            device.finish(order)

    with InProcessFederation(tmp_path, exports, text()) as stage:
        device = HostileDevice(stage.broker, stage.name, "tight", behave, budget_bytes=BUDGET)
        with device:
            stage.run()
        given = levels(stage)
        assert given[0] == "full"
        assert set(given[1:]) == {"rank 1/4"}
        (setback,) = stage.ledger.measurements.setbacks()
        assert (setback.device, setback.round, setback.level) == ("tight", 0, "full")
        assert (setback.code, setback.peak_bytes, setback.limit_bytes) == (code, peak, BUDGET)
        (line, *_) = stage.lines.having("downshift", "tight gets rank 1/4")
        assert "in round 1" in line
        # The decision follows from the ledger alone: another process that opens it plans the same.
        profile = stage.ledger.profiles.all()["tight"]
        here = place_device(stage.federation, profile, None, 3, history_of(stage.federation))
        with Ledger.open(tmp_path / "ledger.sqlite") as again:
            assert again.measurements.setbacks() == (setback,)
        assert here.level.name == "rank 1/4"
        assert here.chosen.correction > 1.0
        assert place_device(stage.federation, profile, None, 3).level.name == "full"


def test_device_that_no_cut_fits_any_more_is_left_out_with_the_reason(tmp_path: Path, exports: Path) -> None:
    """The only level failed: nobody is given it again, and the run says why."""
    device: HostileDevice
    config = text().replace("levels = [1, 4]", "levels = [4]").replace("size = 1", "size = 2")

    def behave(order: WorkOrder) -> None:
        out_of_memory(device, order)

    with InProcessFederation(tmp_path, exports, config) as stage:
        device = HostileDevice(stage.broker, stage.name, "tight", behave, budget_bytes=BUDGET)
        other = HostileDevice(stage.broker, stage.name, "well", lambda order: finish(other, order))
        with device, other:
            stage.run()
        assert levels(stage) == ["rank 1/4"] * 4
        assert stage.lines.having("tight", "fits no cut", "ran out of memory with it in round 1")


def finish(device: HostileDevice, order: WorkOrder) -> None:
    device.finish(order)
