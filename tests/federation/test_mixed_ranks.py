"""FedLoRA as its paper runs it: ranks mixed in one population of real devices, Adam, from a given base."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from coordinator.exporting.cut_exporter import dense_module
from coordinator.models.catalog import build_model
from coordinator.run_file.loading import load_config_text
from coordinator.submodels.build import module_tensors
from edge.contracts.manifest import ArtifactManifest
from edge.contracts.tensor_file import encode_tensors, read_tensor_file
from tests.federation.in_process import InProcessFederation

pytestmark = [pytest.mark.runtime, pytest.mark.slow]

RANKS = {"device-00": 4, "device-01": 1}
ADAPTED = ("fc1", "fc2")
RUN = """
[federation]
name = "ranks"
seed = 3
rounds = 2
[model]
build = "mlp"
input = [64]
classes = 10
options = {{ hidden = [16, 12] }}
weights = "{weights}"
[method]
name = "fedlora"
levels = [1, 4]
[training]
steps = 3
batch = 16
optimizer = "adam"
lr = 0.002
[data]
source = "digits"
scale = 0.0625
[evaluation]
every = 0
[cohort]
deadline-s = 120
[[cohort.local]]
count = 1
level = 4
[[cohort.local]]
count = 1
level = 1
"""


def test_devices_of_two_ranks_train_with_adam_and_meet_as_products(tmp_path: Path) -> None:
    base = module_tensors(build_model("mlp", input_shape=(64,), classes=10, hidden=[16, 12], seed=77))
    weights = tmp_path / "base.safetensors"
    weights.write_bytes(encode_tensors(base))
    text = RUN.format(weights=weights)
    with InProcessFederation(tmp_path, tmp_path / "exports", text) as federation:
        for share, device in enumerate(RANKS):
            federation.write_data(device, share)
            federation.agent(device)
        state = federation.run()
        blobs = federation.federation.blobs
        sent = {}
        for update in federation.ledger.updates.of_attempt(1, 0):
            entry = update.assignment
            manifest = ArtifactManifest.from_bytes(blobs.path(entry.artifact_digest).read_bytes())
            assert manifest.optimizer == "adam"
            tensors = read_tensor_file(blobs.path(update.update_digest), where=entry.device)
            factors = {f"{path}.{side}" for path in ADAPTED for side in "uv"}
            assert {*tensors} == factors | {"fc3.weight", "fc3.bias"}
            assert all(tensors[f"{path}.u"].shape[1] == RANKS[entry.device] for path in ADAPTED)
            assert all(np.abs(tensors[name]).max() > 0 for name in tensors)
            sent[entry.device] = tensors
    assert {*sent} == {*RANKS}
    # softmax(gamma / 1), gamma the rank relative to the largest.
    share = {device: math.exp(rank / 4) for device, rank in RANKS.items()}
    for path in ADAPTED:
        products = {d: t[f"{path}.u"].astype(float) @ t[f"{path}.v"] for d, t in sent.items()}
        learnt = sum(share[d] * product for d, product in products.items()) / sum(share.values())
        assert np.abs(state.tensors[f"{path}.weight"] - (base[f"{path}.weight"] + learnt)).max() < 1e-6
        assert np.array_equal(state.tensors[f"{path}.bias"], base[f"{path}.bias"])
    dense = dense_module(load_config_text(text))
    assert all(np.array_equal(value, base[name]) for name, value in module_tensors(dense).items())
