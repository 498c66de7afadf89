"""Networks without dead channels as artifacts: in every format, and with sparse kernels inside what is left."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from torch import nn

from coordinator.pruning.compaction import Compaction, mask_records
from coordinator.pruning.masks import prunable_weights
from coordinator.submodels.build import apply_cut
from coordinator.submodels.record import Cut
from edge.contracts.manifest import InputSpec
from export.bundle import export_artifact
from export.training_step import SparseWeight, StepSpec

pytestmark = [pytest.mark.runtime, pytest.mark.slow]

SPEC = InputSpec(layout="chw", shape=(2, 8, 8))
CLASSES = 3


def net() -> nn.Module:
    module = nn.Sequential(
        nn.Conv2d(2, 4, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(64, 12), nn.ReLU(), nn.Linear(12, CLASSES)
    )
    module.input_spec = SPEC
    return module


def compacted(module: nn.Module) -> tuple[Cut, tuple[str, ...]]:
    """Without a channel, a third of the other columns, and half of the hidden units."""
    names = prunable_weights(module)
    masks = {name: np.ones(tuple(module.get_parameter(name).shape), bool) for name in names}
    masks["3.weight"][:, :16] = False
    masks["3.weight"][:, ::3] = False
    masks["5.weight"][:, 1::2] = False
    compaction = Compaction(module)
    return compaction.cut(mask_records(names, scored=False), compaction.live(masks, {})), names


@pytest.mark.parametrize("name", ["onnxruntime", "executorch", "onnxruntime_training"])
def test_every_format_exports_what_is_left(tmp_path: Path, name: str) -> None:
    module = net()
    cut, names = compacted(module)
    assert cut["0"].out_idx == (1, 2, 3)
    assert cut["3"].in_idx == tuple(range(16, 64))
    assert cut["3"].read_idx == tuple(column for column in range(16, 64) if column % 3)
    spec = StepSpec(input=SPEC, classes=CLASSES, batch=4, masked=names)
    manifest = export_artifact(apply_cut(module, cut), spec, tmp_path / "a", runtime=name)
    assert manifest.parity.max_grad_rel_err <= manifest.parity.tolerance
    assert manifest.tensor("3.weight").shape == manifest.tensor("3.weight#mask").shape == (6, 32)


def test_sparse_kernels_work_inside_what_is_left(tmp_path: Path) -> None:
    module = net()
    cut, names = compacted(module)
    sparse = (SparseWeight("3.weight", 150),)
    spec = StepSpec(input=SPEC, classes=CLASSES, batch=4, masked=names, sparse=sparse)
    manifest = export_artifact(apply_cut(module, cut), spec, tmp_path / "a", runtime="executorch")
    assert manifest.parity.max_grad_rel_err <= manifest.parity.tolerance
    assert manifest.tensor("3.weight").capacity == 150
