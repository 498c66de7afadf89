"""PruneFL's initial pruning on a sample with real agents, and a device whose agent knows of no samples."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.rounds.orders import orders_for
from edge.contracts.errors import PlanError
from edge.contracts.evaluation import ABILITY
from edge.contracts.messages import Hello
from edge.contracts.plan import read_order
from profiles.device import DeviceProfile
from tests.federation.in_process import InProcessFederation
from tests.federation.test_pruning import TEXT as PRUNED

TEXT = PRUNED.replace(
    "interval = 2\n",
    'interval = 2\ninitial-rounds = 1\ninitial-steps = 6\ninitial-examples = 40\nselected-device = "pi-b"\n',
).replace("rounds = 5\n", "rounds = 2\n")


def test_device_without_samples_is_refused_before_the_round(tmp_path: Path) -> None:
    with InProcessFederation(tmp_path, tmp_path / "exports", TEXT) as run:
        old = Hello(
            device="pi-b",
            agent_version="0.1",
            profile=DeviceProfile(device="pi-b"),
            runtimes={"onnxruntime": "1"},
            num_examples=100,
            abilities=(ABILITY,),
        )
        state = run.federation.method.init()
        with pytest.raises(PlanError, match=r"device pi-b, round 1: prunefl takes a sample of 40 examples.*update"):
            orders_for(run.federation, state, [old], 0, 0, "train")


@pytest.mark.runtime
@pytest.mark.slow
def test_selected_device_trains_on_its_sample_alone_and_all_train_on_all_then(tmp_path: Path) -> None:
    with InProcessFederation(tmp_path, tmp_path / "exports", TEXT) as run:
        for share, device in enumerate(("pi-a", "pi-b")):
            run.write_data(device, share)
            run.agent(device)
        run.run()
        assert [(r, devices) for r, _, devices in run.committed()] == [(0, ["pi-b"]), (1, ["pi-a", "pi-b"])]
        first = run.ledger.updates.of_attempt(0, 0)[0]
        assert (first.report.num_examples, first.report.steps) == (40, 6)
        for update, share in zip(run.ledger.updates.of_attempt(1, 0), run.shares, strict=False):
            assert read_order(update.assignment.order).fixed_sample is None
            assert update.report.num_examples == len(share)
