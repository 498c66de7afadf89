"""A language model in a federation over MQTT: mixed ranks, one base that travels once, killed and resumed.

The factors of every round are those of the same run in torch, to rounding; bytes are those of the factors.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from coordinator.cli.assembly import resume_run, start_run
from coordinator.cli.open_run import RunOptions
from coordinator.exporting.base_file import base_key
from coordinator.ledger.ledger import Ledger
from coordinator.run_file.loading import load_config_text
from edge.contracts.plan import read_order
from edge.contracts.tensor_file import decode_tensors
from tests.coordinator.simulation.small_simulation import simulated
from tests.federation.small_run import crash
from tests.language_models import run_text

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.runtime]

TEXT = run_text(rounds=3, options="levels = [8, 4, 2]\ndepths = [2, 1]").replace(
    '[[cohort.local]]\ncount = 1\nlevel = "4"\n',
    '[[cohort.local]]\ncount = 1\nlevel = "8"\n[[cohort.local]]\ncount = 1\nlevel = "rank 4, depth 1"\n',
)
DEVICES = 4


def final_bytes(run_dir: Path) -> bytes:
    return (run_dir / "checkpoints" / "final.safetensors").read_bytes()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("words") / "run"
    summary = start_run(load_config_text(TEXT), run_dir, RunOptions(quiet=True))
    assert summary["devices"] == DEVICES
    assert summary["levels"] == 3
    assert not summary["torch_loaded_on_devices"]
    assert not (run_dir / "checkpoints" / "final.onnx").exists()
    return run_dir


def test_its_model_is_that_of_the_same_run_in_torch(undisturbed: Path, tmp_path: Path) -> None:
    simulated(load_config_text(TEXT), tmp_path / "simulated")
    got, expected = (
        decode_tensors(final_bytes(folder), where="final") for folder in (undisturbed, tmp_path / "simulated")
    )
    for path in ("blocks.0.attention.qkv", "blocks.1.attention.output"):
        ours, torchs = (tensors[f"{path}.u"] @ tensors[f"{path}.v"] for tensors in (got, expected))
        print("REL", np.abs(ours - torchs).max() / np.abs(torchs).max())
        assert np.abs(ours - torchs).max() <= 2e-3 * np.abs(torchs).max()


def test_the_base_is_stored_and_sent_once(undisturbed: Path) -> None:
    config = load_config_text(TEXT)
    with Ledger.open(undisturbed / "ledger.sqlite") as ledger:
        base = ledger.artifacts.find(base_key(config))
        assert base is not None
        size = ledger.blobs.sizes()[base]
        down: dict[str, list[int]] = {}
        for entry in ledger.rounds.all():
            for update in ledger.updates.of_attempt(entry.round, entry.attempt):
                order = read_order(update.assignment.order)
                assert order.constants is not None
                assert order.constants.digest == base
                down.setdefault(update.report.device, []).append(update.report.bytes_down)
                assert update.report.bytes_up < 12_000
                assert {name.rpartition(".")[2] for name in order.upload} == {"u", "v"}
    assert len(list((undisturbed / "blobs").glob(f"??/{base}"))) == 1
    for first, *later in down.values():
        assert first > size
        assert max(later) < 12_000


@pytest.mark.parametrize("point", ["planned", "recorded", "aggregating", "before-commit"])
def test_killed_anywhere_it_ends_with_the_same_bits(undisturbed: Path, tmp_path: Path, point: str) -> None:
    run_dir = tmp_path / "run"
    crash(run_dir, point, 2, text=TEXT)
    resume_run(run_dir, RunOptions(quiet=True))
    assert final_bytes(run_dir) == final_bytes(undisturbed)


def test_a_store_that_lost_its_base_makes_it_again(undisturbed: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    crash(run_dir, "committed", 1, text=TEXT)
    with Ledger.open(run_dir / "ledger.sqlite") as ledger:
        base = ledger.artifacts.find(base_key(load_config_text(TEXT)))
    (stored,) = (run_dir / "blobs").glob(f"??/{base}")
    stored.unlink()
    resume_run(run_dir, RunOptions(quiet=True))
    assert final_bytes(run_dir) == final_bytes(undisturbed)


def test_features_kept_on_devices_give_the_same_bits_after_a_kill_too(undisturbed: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    text = TEXT.replace("lr = 0.02", 'lr = 0.02\ncached-features = "float32"')
    crash(run_dir, "recorded", 1, text=text)
    resume_run(run_dir, RunOptions(quiet=True))
    assert final_bytes(run_dir) == final_bytes(undisturbed)
    (kept,) = (run_dir / "devices").glob("*/store/features/*")
    assert kept.parts[-4] == "device-01"  # the others train both blocks
    assert kept.stat().st_size == 40 * (24 + 4 * 8 * 16)  # of each example: place and seal, [8, 16] float32
