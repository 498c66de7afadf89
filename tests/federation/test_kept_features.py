"""Layers that a cut freezes run once per example on its devices: the same bits as without, after a crash too."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from pathlib import Path

import msgspec
import numpy as np
import pytest

from coordinator.cli.assembly import resume_run, start_run
from coordinator.cli.open_run import RunOptions
from coordinator.run_file.loading import load_config_text
from edge.contracts.report import TrainReport
from edge.contracts.tensor_file import decode_tensors
from tests.coordinator.simulation.small_simulation import simulated
from tests.federation.small_run import crash

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.runtime]

PLAIN = """
[federation]
name = "kept"
seed = 4
rounds = 6
[model]
build = "tests.federation.tiny_convnet:build"
input = [1, 8, 8]
classes = 10
[method]
name = "slt"
rounds = 6
schedule = "equal"
steps = [0.5, 1.0]
levels = [0.5]
norm = "running"
[training]
epochs = 2
batch = 16
lr = 0.02
momentum = 0.9
frozen-norm = "static"
[data]
source = "tests.federation.tiny_convnet:digit_images"
partition = "iid"
scale = 0.0625
[evaluation]
every = 0
[cohort]
size = 2
min-reports = 2
[[cohort.local]]
count = 2
"""
"""Rounds 0 and 1 train the narrow network, 2 and 3 its first layer whole, 4 and 5 what is above that."""
FEATURES = (4, 4, 4)
"""Behind the first convolution, its norm, ReLU and pooling."""


SPARSE = (
    PLAIN[: PLAIN.index("[method]")].replace("rounds = 6", "rounds = 2")
    + '[method]\nname = "sparse_update"\nlevels = [0.9]\ncontributions = { "4" = 1.0 }\n'
    + PLAIN[PLAIN.index("[training]") :]
)
"""The second convolution, its norm and the head are trained, and after two rounds that norm's statistics gathered."""


def kept(features: str, text: str = PLAIN) -> str:
    return text.replace("[data]", f'cached-features = "{features}"\n[data]')


def run(text: str, run_dir: Path) -> bytes:
    start_run(load_config_text(text), run_dir, RunOptions(quiet=True))
    return final_bytes(run_dir)


def final_bytes(run_dir: Path) -> bytes:
    return (run_dir / "checkpoints" / "final.safetensors").read_bytes()


def files(run_dir: Path) -> list[Path]:
    return sorted((run_dir / "devices").glob("*/store/features/*"))


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return run(PLAIN, tmp_path_factory.mktemp("plain") / "run")


def test_devices_compute_them_once_and_the_model_has_the_same_bits(plain: bytes, tmp_path: Path) -> None:
    assert run(kept("float32"), tmp_path / "run") == plain
    found = files(tmp_path / "run")
    assert len({path.parts[-4] for path in found}) == len(found) == 2  # one file of each device, for both rounds
    record = 24 + 4 * int(np.prod(FEATURES))
    assert all(path.stat().st_size % record == 0 and path.stat().st_size >= 500 * record for path in found)


def test_sparse_updates_begin_behind_frozen_layers_and_gather_statistics_of_trained_norms(tmp_path: Path) -> None:
    plain = run(SPARSE, tmp_path / "plain")
    text = kept("float32", SPARSE).replace("contributions", 'features = "kept"\ncontributions')
    assert run(text, tmp_path / "run") == plain
    assert len(files(tmp_path / "run")) == 2
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["program"] for line in lines if line["event"] == "round"] == ["train", "train", "stats"]
    simulated(load_config_text(SPARSE), tmp_path / "simulated")
    got, expected = (decode_tensors(data, where="final") for data in (final_bytes(tmp_path / "simulated"), plain))
    for name in ("5.running_mean", "5.running_var", "4.weight"):
        assert np.abs(got[name] - expected[name]).max() <= 1e-3 * np.abs(expected[name]).max()
    assert np.array_equal(expected["1.running_var"], np.ones(4))  # as it was built


def test_trainers_without_python_keep_them_too(tmp_path: Path) -> None:
    text = SPARSE.replace("[method]", '[runtime]\nname = "executorch"\n[method]')
    plain = run(text, tmp_path / "plain")
    behind = kept("float32", text).replace("contributions", 'features = "kept"\ncontributions')
    assert run(behind, tmp_path / "run") == plain
    assert len(files(tmp_path / "run")) == 2
    with contextlib.closing(sqlite3.connect(tmp_path / "run" / "ledger.sqlite")) as ledger:
        reports = [row[0] for row in ledger.execute("SELECT report FROM updates")]
    assert {msgspec.json.decode(report, type=TrainReport).trainer_kind for report in reports} == {"native"}


def test_killed_in_the_rounds_that_keep_them_it_ends_with_the_same_bits(plain: bytes, tmp_path: Path) -> None:
    crash(tmp_path / "run", "recorded", 4, text=kept("float32"))
    resume_run(tmp_path / "run", RunOptions(quiet=True))
    assert final_bytes(tmp_path / "run") == plain


def test_bytes_move_the_model_by_rounding_alone(plain: bytes, tmp_path: Path) -> None:
    got, expected = (decode_tensors(data, where="final") for data in (run(kept("int8"), tmp_path / "run"), plain))
    for name in ("4.weight", "8.weight"):  # measured: 2.2 % after some 150 steps in which it could grow
        assert 0 < np.abs(got[name] - expected[name]).max() <= 5e-2 * np.abs(expected[name]).max()
    assert np.array_equal(got["0.weight"], expected["0.weight"])


def test_simulation_trains_the_same_steps_from_the_input(plain: bytes, tmp_path: Path) -> None:
    simulated(load_config_text(kept("float32")), tmp_path / "simulated")
    got, expected = (decode_tensors(data, where="final") for data in (final_bytes(tmp_path / "simulated"), plain))
    for name in ("0.weight", "4.weight", "8.weight"):
        assert np.abs(got[name] - expected[name]).max() <= 1e-3 * np.abs(expected[name]).max()
