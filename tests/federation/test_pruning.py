"""PruneFL with real agents: masks reach the devices, only kept values travel, scores come when they are asked for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from coordinator.submodels.packed_tensors import order_masks
from coordinator.submodels.sparse_layers import SMALLEST, room
from edge.contracts.plan import read_order
from edge.contracts.tensor_file import read_tensor_file
from tests.federation.in_process import InProcessFederation

pytestmark = [pytest.mark.runtime, pytest.mark.slow]

TEXT = """
[federation]
name = "pruned"
seed = 3
rounds = 5

[model]
build = "mlp"
input = [64]
classes = 10
options = { hidden = [96, 96] }

[method]
name = "prunefl"
compact = false
interval = 2
first-density = 0.2
last-density = 0.02
limit-rounds = 4

[training]
epochs = 1
batch = 16
lr = 0.05
momentum = 0.9
weight-decay = 0.001

[data]
source = "digits"
scale = 0.0625
devices = 2

[evaluation]
every = 0

[cohort]
size = 2
"""


def test_pruned_federation_sends_values_only_and_trains_what_is_kept(tmp_path: Path) -> None:
    with InProcessFederation(tmp_path, tmp_path / "exports", TEXT) as run:
        for share, device in enumerate(("pi-a", "pi-b")):
            run.write_data(device, share)
            run.agent(device)
        state = run.run()
        assert [r for r, _, _ in run.committed()] == [0, 1, 2, 3, 4]
        for round_index in range(5):
            for update in run.ledger.updates.of_attempt(round_index, 0):
                asked = read_order(update.assignment.order).upload
                assert any(name.endswith("#squared_gradient") for name in asked) == (round_index in (1, 3))
        blobs = run.federation.blobs
        for update in run.ledger.updates.of_attempt(4, 0):
            order = read_order(update.assignment.order)
            masks = order_masks(blobs, order)
            sent = read_tensor_file(blobs.path(update.update_digest), where="update")
            assert {n.removesuffix("#kept") for n in sent if n.endswith("#kept")} == masks.keys()
            assert all(sent[f"{name}#kept"].shape == (int(mask.sum()),) for name, mask in masks.items())
        # 0.2 after round 2, then 0.2 - 0.18 * 4 / 4
        kept = sum(int(m.sum()) for m in masks.values()) / sum(m.size for m in masks.values())
        assert kept == pytest.approx(0.02, abs=0.001)
        for name, mask in masks.items():
            assert np.count_nonzero(state.tensors[name]) <= int(mask.sum())
            assert not state.tensors[name][~mask].any()
        dense = sum(v.nbytes for v in state.tensors.values())
        # 2 % of the weights, every bias, and the file's header
        assert all(blobs.size(u.update_digest) < 0.1 * dense for u in run.ledger.updates.of_attempt(4, 0))
        assert run.federation.artifacts.exports == 2  # with and without scores; masks are values


def test_layers_are_sparse_where_the_device_measured_that_to_be_faster(tmp_path: Path, executorch: str) -> None:
    with InProcessFederation(tmp_path, tmp_path / "exports", f'{TEXT}\n[runtime]\nname = "{executorch}"\n') as run:
        for share, device in enumerate(("pi-a", "pi-b")):
            run.write_data(device, share)
            run.agent(device, runtime=executorch)
        state = run.run()
        metrics = {r.round: r.metrics for r in run.ledger.rounds.all()}
        held = {}
        for round_index in range(5):
            for update in run.ledger.updates.of_attempt(round_index, 0):
                order = read_order(update.assignment.order)
                masks = order_masks(run.federation.blobs, order)
                manifest = run.federation.artifacts.load(update.assignment.artifact_digest).manifest
                below = run.ledger.profiles.all()[order.device].sparse_below[executorch]["linear"]
                is_scored = round_index in (1, 3)
                for name, mask in masks.items():
                    is_sparse = not is_scored and mask.size >= SMALLEST and mask.mean() <= below
                    capacity = manifest.tensor(name).capacity
                    assert capacity == (room(int(mask.sum()), mask.size) if is_sparse else 0)
                    held[round_index, name] = capacity
        # At a density of 0.02 every layer but the classifier, which is small, is sparse on any processor.
        assert held[4, "fc1.weight"] > 0
        assert held[4, "fc2.weight"] > 0
        assert held[4, "fc3.weight"] == 0
        assert metrics[4]["layer_forms"]["fc2.weight"].keys() == {
            f"sparse, room for {held[4, 'fc2.weight']} of {96 * 96}"
        }
        for name, mask in masks.items():
            assert not state.tensors[name][~mask].any()
            assert state.tensors[name][mask].any()
