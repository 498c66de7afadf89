"""The self-test of a language model maps its base from a file: the same values, no copy, and nothing stays on disk."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from edge.contracts.errors import StoreFull
from edge.contracts.streams import self_test_value
from edge.contracts.tensors import TensorSpec
from edge.runtimes import runtime
from edge.training import self_test_base
from edge.training.artifact_folder import read_artifact_folder
from edge.training.self_test import check_self_test
from edge.training.self_test_base import formula_weights
from export.bundle import export_artifact
from tests.contracts.samples import MANIFEST
from tests.export.language.models import small_cut, step_of

TEST = MANIFEST.self_test
SPECS = [
    TensorSpec("table.weight", (3, 70_000), "int8", "mapped"),
    TensorSpec("table.weight#scale", (3,), "float32", "mapped"),
    TensorSpec("half.weight", (5, 30_001), "float16", "mapped"),
    TensorSpec("norm.weight", (7,), "float32", "mapped"),
    TensorSpec("norm.bias", (7,), "float32", "mapped"),
]
STATE = {"x.u": np.ones((2, 2), np.float32)}


class Usage(NamedTuple):
    total: int
    used: int
    free: int


def test_the_file_holds_the_formulas_values_and_is_gone_afterwards(tmp_path: Path) -> None:
    with formula_weights(SPECS, TEST, STATE, tmp_path) as weights:
        assert len(list(tmp_path.glob("self-test*.tmp"))) == 2
        views = {name: weights[name] for name in weights}
    assert list(tmp_path.iterdir()) == []
    assert set(views) == {"x.u", *(spec.name for spec in SPECS)}
    for spec in SPECS:
        value = self_test_value(spec, TEST.seed, TEST.batch, bias=TEST.bias, gain=TEST.gain)
        assert (views[spec.name].dtype, views[spec.name].shape) == (value.dtype, value.shape)
        assert (views[spec.name] == value).all(), spec.name


def test_a_disk_without_room_says_how_much_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(self_test_base.shutil, "disk_usage", lambda path: Usage(1 << 40, 0, (16 << 20) + 1000))
    with pytest.raises(StoreFull, match=r"self-test's base needs \d+ bytes for a moment, 1000 can be put there"):
        with formula_weights(SPECS, TEST, STATE, tmp_path):
            pass
    assert list(tmp_path.iterdir()) == []
    shutil.rmtree(tmp_path)
    with pytest.raises(StoreFull, match="the self-test's base is not written"):
        with formula_weights(SPECS, TEST, STATE, tmp_path):
            pass


@pytest.mark.slow
@pytest.mark.runtime
def test_a_device_finds_the_losses_of_the_exporting_machine(tmp_path: Path) -> None:
    export_artifact(small_cut("llama", "int4"), step_of(small_cut("llama", "int4")), tmp_path / "artifact")
    manifest, files = read_artifact_folder(tmp_path / "artifact")
    store = tmp_path / "store"
    store.mkdir()
    session = runtime("onnxruntime").load(manifest, files, threads=1)
    assert check_self_test(session, manifest, steps=3, folder=store) <= 1e-6
    assert list(store.iterdir()) == []
