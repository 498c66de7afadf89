"""The run files of the papers' settings: they read, and their methods, levels and partitions exist."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from coordinator.config.run_config import RunConfig
from coordinator.data.partition import partition
from coordinator.exporting.cut_exporter import dense_module, run_input_spec
from coordinator.methods import build_method
from coordinator.planning.capacity_levels import Capacities, device_names
from coordinator.run_file.loading import load_config
from coordinator.submodels.costs import cut_costs

FILES = sorted((Path(__file__).parents[3] / "examples" / "papers").glob("*.toml"))
LABELS = np.random.default_rng(0).integers(0, 10, 20_000)
OWNERS = np.random.default_rng(0).integers(0, 500, 20_000)


def read(path: Path, folder: Path) -> RunConfig:
    return load_config(path, environ={"APPORTION_DATA": str(folder)})


def test_there_are_some() -> None:
    assert len(FILES) >= 6


@pytest.mark.slow
@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_every_device_gets_a_level_and_data(path: Path, tmp_path: Path) -> None:
    config = read(path, tmp_path)
    dense = dense_module(config)
    method = build_method(config.method.name, dense, config.method.options)
    levels = {
        level: cut_costs(dense, method.cut_shape(level, round_index=0, device="", seed=0), run_input_spec(config))
        for level in method.levels()
    }
    capacities = Capacities(config, list(levels), lambda level, runtime: levels[level].train_bytes)
    given = {capacities.level(name, 0) for name in device_names(config.cohort)}
    assert given == set(levels)
    assert all(costs.params > 0 for costs in levels.values())
    shares = partition(
        config.data.partition,
        LABELS,
        config.cohort.local_devices,
        seed=config.federation.seed,
        alpha=config.data.alpha,
        owners=OWNERS,
    )
    assert len(shares) == config.cohort.local_devices
    assert min(map(len, shares)) > 0


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_says_how_it_is_started(path: Path) -> None:
    head = [line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("# ")]
    assert any(f"apportion simulate examples/papers/{path.name}" in line for line in head)
    assert len(path.read_text(encoding="utf-8").splitlines()) < 100


def test_fedhm_sizes_are_the_papers(tmp_path: Path) -> None:
    # Source: FedHM, ResNet-18 with 10 classes at rank factors 1, 2, 4, 8.
    config = read(next(path for path in FILES if path.stem == "fedhm_journal_cifar10"), tmp_path)
    dense = dense_module(config)
    method = build_method(config.method.name, dense, config.method.options)
    cuts = [method.cut_shape(level, round_index=0, device="", seed=0) for level in method.levels()]
    params = [cut_costs(dense, cut, run_input_spec(config)).params for cut in cuts]
    assert params == [11_173_962, 4_157_514, 2_209_866, 1_236_042]
