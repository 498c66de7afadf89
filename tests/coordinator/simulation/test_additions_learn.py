"""Methods that add to a frozen base, simulated from given weights: the base travels once, and the loss falls."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coordinator.methods import build_method
from coordinator.models.catalog import build_model
from coordinator.run_file.loading import load_config_text
from coordinator.simulation.assembly import SimulationOptions, simulate
from coordinator.simulation.record import Record
from coordinator.submodels.build import module_tensors
from coordinator.submodels.packed_tensors import split_tensors
from edge.contracts.tensor_file import encode_tensors

pytestmark = pytest.mark.slow

DEVICES, ROUNDS = 2, 3
SIZES = {"width": 16, "depth": 2, "heads": 2}
OPTIONS = {
    "adapter": "levels = [4]",
    "prefix": "levels = [3]\nlength = 5",
    "prompt": "levels = [4]",
    "fedlora": "levels = [2]",
    "slora": "levels = [2]\nstage-one-rounds = 1\ndensity = 0.25",
}


def file_bytes(method: str, round_index: int = 0) -> tuple[int, int]:
    """Bytes of the file of what a round changes, and of what it does not: frozen tensors and masks."""
    module = build_model("vit", input_shape=(1, 8, 8), classes=10, **SIZES)
    made = build_method(method, module, tomllib.loads(OPTIONS[method]))
    state = replace(made.init(), round=round_index)
    files = split_tensors(made.cut(state, made.levels()[0], round_index=round_index, device="", seed=2))
    return len(encode_tensors(files[0])), len(encode_tensors(files[1]))


def summary(folder: Path, method: str, *, lr: float = 0.01) -> dict[str, Any]:
    """The end of a small run from given weights."""
    base = build_model("vit", input_shape=(1, 8, 8), classes=10, seed=99, **SIZES)
    folder.mkdir()
    (folder / "base.safetensors").write_bytes(encode_tensors(module_tensors(base)))
    text = f"""
[federation]
name = "additions"
seed = 2
rounds = {ROUNDS}
[model]
build = "vit"
input = [1, 8, 8]
options = {{ width = 16, depth = 2, heads = 2 }}
weights = "base.safetensors"
[method]
name = "{method}"
{OPTIONS[method]}
[training]
steps = 20
batch = 32
last-batch = "wrap"
optimizer = "adam"
lr = {lr}
[data]
source = "tests.federation.tiny_convnet:digit_images"
scale = 0.0625
[evaluation]
every = 0
[[cohort.local]]
count = {DEVICES}
"""
    return simulate(load_config_text(text, folder=folder), folder, Record(), SimulationOptions(quiet=True))


@pytest.mark.parametrize("method", sorted({*OPTIONS} - {"slora"}))
def test_base_is_sent_once_and_additions_every_round(method: str, tmp_path: Path) -> None:
    trained, still = summary(tmp_path / "trained", method), summary(tmp_path / "still", method, lr=1e-12)
    changing, constant = file_bytes(method)
    assert changing < constant / 3
    assert trained["bytes_up"] == DEVICES * ROUNDS * changing
    assert trained["bytes_down"] == DEVICES * (ROUNDS * changing + constant)
    losses = [run["evaluation"]["models"]["server"]["loss"] for run in (still, trained)]
    assert losses[1] < losses[0] - 0.2


def test_sparse_stage_sends_kept_entries_and_the_mask_once(tmp_path: Path) -> None:
    (sparse, with_masks), (factors, base) = file_bytes("slora", 0), file_bytes("slora", 1)
    found = summary(tmp_path / "two", "slora")
    assert sparse - factors < 4 * (16 * 48 + 16 * 16) * 2 / 4  # a quarter of the adapted weights, values alone
    assert found["bytes_up"] == DEVICES * (sparse + (ROUNDS - 1) * factors)
    assert found["bytes_down"] == found["bytes_up"] + DEVICES * (with_masks + base)
