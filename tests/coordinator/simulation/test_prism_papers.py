"""PriSM's run files: one round of every one of them, shortened to two devices, a step and a few made-up examples."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from coordinator.config.cohort import LocalGroup
from coordinator.config.run_config import RunConfig
from coordinator.data.datasets import Dataset
from coordinator.exporting.cut_exporter import dense_module, run_input_spec
from coordinator.methods import build_method
from coordinator.run_file.loading import load_config
from coordinator.submodels.build import apply_cut
from tests.coordinator.simulation.small_simulation import changed, simulated

FILES = sorted((Path(__file__).parents[3] / "examples" / "papers").glob("prism_*.toml"))
SOURCE = "tests.coordinator.simulation.test_prism_papers:"


def images(path: Path | None, seed: int, holdout: float) -> Dataset:
    return _made_up(np.random.default_rng(0).integers(0, 256, (12, 3, 32, 32), np.uint8), 10)


def digits(path: Path | None, seed: int, holdout: float) -> Dataset:
    return _made_up(np.random.default_rng(0).integers(0, 256, (12, 1, 28, 28), np.uint8), 10)


def words(path: Path | None, seed: int, holdout: float) -> Dataset:
    return _made_up(np.random.default_rng(0).integers(0, 1001, (12, 200)), 2)


def _made_up(x: np.ndarray, classes: int) -> Dataset:
    y = np.arange(12) % classes
    return Dataset(x[:8], y[:8], x[8:], y[8:], tuple(map(str, range(classes))), np.arange(8) // 2)


def shortened(path: Path, folder: Path) -> RunConfig:
    """The file's model, method and training with one step on each of two devices."""
    config = load_config(path, environ={"APPORTION_DATA": str(folder)})
    source = {"cifar10": "images", "mnist-writers": "digits", "movie-reviews": "words"}[config.data.source]
    groups = config.cohort.local
    few = tuple(LocalGroup(count=1, level=group.level) for group in (groups * 2)[:2])
    config = changed(
        config,
        federation={"rounds": 1},
        training={"epochs": 0, "steps": 1, "batch": 4, "last_batch": "wrap"},
        data={"source": SOURCE + source, "partition": "iid", "devices": 0},
        evaluation={"batch": 4},
    )
    return msgspec.structs.replace(config, cohort=msgspec.structs.replace(config.cohort, size=2, local=few))


def test_there_are_all_of_the_papers_settings() -> None:
    assert [path.stem.removeprefix("prism_") for path in FILES] == [
        "cifar10", "cifar10_dirichlet", "cifar10_mixed", "deit_cifar10", "mnist_writers", "movie_reviews",
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_one_round_trains_what_every_device_holds(path: Path, tmp_path: Path) -> None:
    summary = simulated(shortened(path, tmp_path), tmp_path / "run")
    levels = {group.level for group in load_config(path, environ={"APPORTION_DATA": str(tmp_path)}).cohort.local}
    assert summary["rounds"] == 1
    assert len(summary["device_table"]) == 2
    assert summary["levels"] == len(levels)
    assert summary["bytes_up"] < 0.5 * 2 * 4 * sum(
        p.numel() for p in dense_module(shortened(path, tmp_path)).parameters()
    )
    assert 0 <= summary["accuracy"] <= 1


def test_every_matrix_of_the_transformer_is_decomposed(tmp_path: Path) -> None:
    config = shortened(next(path for path in FILES if "deit" in path.stem), tmp_path)
    dense = dense_module(config)
    method = build_method(config.method.name, dense, config.method.options)
    cut = method.cut_shape(method.levels()[0], round_index=0, device="", seed=0)
    factors = {path for path, record in cut.items() if record.factor}
    parts = ("attention.qkv", "attention.proj", "fc1", "fc2")
    assert factors == {f"blocks.{i}.{part}" for i in range(12) for part in parts}
    trained = apply_cut(dense, cut)
    # Width 192, 39 of its components; of fc1's 768 outputs 154.
    assert {n: tuple(p.shape) for n, p in trained.blocks[0].named_parameters() if n.endswith((".u", ".v"))} == {
        "attention.qkv.u": (576, 39), "attention.qkv.v": (39, 192),
        "attention.proj.u": (192, 39), "attention.proj.v": (39, 192),
        "fc1.u": (154, 39), "fc1.v": (39, 192),
        "fc2.u": (192, 39), "fc2.v": (39, 154),
    }  # fmt: skip
    assert run_input_spec(config).shape == (3, 32, 32)
