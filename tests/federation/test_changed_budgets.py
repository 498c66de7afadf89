"""A device whose owner changes its budget while the run goes on is planned with the new one from the next round on."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge.contracts.plan import WorkOrder
from tests.federation.hostile_device import HostileDevice
from tests.federation.in_process import InProcessFederation
from tests.federation.small_run import config_text
from tests.federation.test_buffered_rounds import Quick

pytestmark = [pytest.mark.runtime, pytest.mark.slow]


class Changing(HostileDevice):
    """Has no budget at first, one byte less than its order needs from its second round on, and none again later."""

    def __init__(self, stage: InProcessFederation, name: str) -> None:
        super().__init__(stage.broker, stage.name, name, self._do)
        self.budgets: list[int] = []

    def _do(self, order: WorkOrder) -> None:
        if order.round == 1:
            self._give(order.peak_bytes - 1)
        if order.round == 2:
            self._give(0)
        self.finish(order)

    def _give(self, budget_bytes: int) -> None:
        self.budgets.append(budget_bytes)
        self._budget_bytes = budget_bytes
        self.hello()


def test_device_with_a_lowered_budget_gets_a_smaller_level_and_a_raised_one_the_first_again(
    tmp_path: Path, exports: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coordinator.messaging.cohort.PRESENCE_S", 600.0)  # these devices have no heartbeat
    text = config_text(local=0, rounds=4).replace("levels = [4]", "levels = [1, 4]")
    text += "[planner]\nmicro-batches = false\nrecompute = false\n"
    with InProcessFederation(tmp_path, exports, text) as stage:
        changing = Changing(stage, "pi-1")
        with changing, Quick(stage, "pi-2"), Quick(stage, "pi-3"):
            stage.run()
        levels = {
            entry.device: [stage.ledger.assignments.of_attempt(r, 0)[number].level for r in range(4)]
            for number, entry in enumerate(stage.ledger.assignments.of_attempt(0, 0))
        }
        assert levels == {
            "pi-1": ["full", "full", "rank 1/4", "full"],
            "pi-2": ["full"] * 4,
            "pi-3": ["full"] * 4,
        }
        lowered, _ = changing.budgets
        assert [profile.budget_bytes for profile in stage.ledger.profiles.earlier("pi-1")] == [0, lowered]
        assert stage.ledger.profiles.earlier("pi-2") == ()
        assert stage.committed() == [(r, 0, ["pi-1", "pi-2", "pi-3"]) for r in range(4)]
        assert len(stage.lines.having("pi-1: budget")) == 2
