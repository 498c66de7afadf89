"""A device whose memory is too small for a step gets it with activations in float16, before a smaller level."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.federation.in_process import InProcessFederation
from tests.federation.small_run import config_text
from tests.federation.test_buffered_rounds import Quick
from tests.federation.test_changed_budgets import Changing

pytestmark = [pytest.mark.runtime, pytest.mark.slow]

LARGER, SMALLER = "rank 1/2", "rank 1/4"
PLANNER = "[planner]\nmicro-batches = false\nrecompute = false\nfloat16-activations = {}\n"


@pytest.mark.parametrize(("is_allowed", "given"), [("true", (LARGER, "keep:float16")), ("false", (SMALLER, "plain"))])
def test_device_with_a_lowered_budget_keeps_its_level_where_the_run_allows_float16(
    is_allowed: str, given: tuple[str, str], tmp_path: Path, exports: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coordinator.messaging.cohort.PRESENCE_S", 600.0)  # these devices have no heartbeat
    text = config_text(local=0, size=2, rounds=4, deadline_s=20.0).replace("levels = [4]", "levels = [2, 4]")
    text = text.replace('build = "mlp"\ninput = [64]', 'build = "resnet8"\ninput = [1, 8, 8]')
    text = text.replace("batch = 16", "batch = 128")  # activations are most of a step
    # Without batch norm, whose statistics would be gathered after the last round.
    text = text.replace("{ hidden = [96, 96] }", '{ norm = "group" }') + PLANNER.format(is_allowed)
    with InProcessFederation(tmp_path, exports, text) as stage:
        with Changing(stage, "pi-1"), Quick(stage, "pi-2"):
            stage.run()
        places = [
            {entry.device: (entry.level, entry.form) for entry in stage.ledger.assignments.of_attempt(r, 0)}
            for r in range(4)
        ]
        plain = (LARGER, "plain")
        assert [place["pi-1"] for place in places] == [plain, plain, given, plain]
        assert {place["pi-2"] for place in places} == {plain}
        assert stage.committed() == [(r, 0, ["pi-1", "pi-2"]) for r in range(4)]
