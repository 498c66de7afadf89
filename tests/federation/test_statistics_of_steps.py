"""SLT with real agents: the statistics round gathers those of the step that was trained last."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.coordinator.simulation.test_frozen_norms import TEXT as SIMULATED
from tests.federation.in_process import InProcessFederation

pytestmark = [pytest.mark.runtime, pytest.mark.slow]

TEXT = (
    SIMULATED.replace('frozen-norm = "static"\n', "")
    .replace("rounds = 3\nschedule", "rounds = 6\nschedule")
    .replace("rounds = 3\n[model]", "rounds = 4\n[model]")
    .replace("size = 2\n[[cohort.local]]\ncount = 2\n", "size = 1\n")
    .replace("scale = 0.0625\n", "scale = 0.0625\ndevices = 1\n")
)
"""The step that would begin after the last round trains more channels of the second convolution."""


def test_statistics_are_of_the_channels_that_were_trained(tmp_path: Path) -> None:
    with InProcessFederation(tmp_path, tmp_path / "exports", TEXT) as run:
        run.write_data("pi-a", 0)
        run.agent("pi-a")
        state = run.run()
        used = []
        for index, _, _ in run.committed():
            (update,) = run.ledger.updates.of_attempt(index, 0)
            used.append(update.assignment.artifact_digest)
    assert len(used) == 5
    assert used[4] == used[3]  # nothing is exported for it
    for name, first in (("5.running_mean", 0.0), ("5.running_var", 1.0)):
        trained = state.tensors[name] != first
        assert trained[:4].all()
        assert not trained[4:].any()
