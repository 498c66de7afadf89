"""PruneFL with real agents: masks reach the devices, only kept values travel, scores come when they are asked for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from coordinator.packed_tensors import order_masks
from coordinator.publisher import read_order
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
            for update in run.ledger.updates(round_index, 0):
                asked = read_order(update.assignment.order).upload
                assert any(name.endswith("#squared_gradient") for name in asked) == (round_index in (1, 3))
        blobs = run.federation.blobs
        for update in run.ledger.updates(4, 0):
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
        assert all(blobs.size(u.update_digest) < 0.1 * dense for u in run.ledger.updates(4, 0))
        assert run.federation.artifacts.exports == 2  # with and without scores; masks are values
