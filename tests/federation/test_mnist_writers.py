"""Real data: MNIST by writer, as devices, over a real Mosquitto with TLS. Skipped where APPORTION_DATA is not set."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from coordinator.brokers.mosquitto import find_mosquitto
from coordinator.cli.assembly import start_run
from coordinator.cli.open_run import RunOptions
from coordinator.config.cohort import LocalGroup
from coordinator.config.run_config import ModelConfig, RunConfig
from coordinator.data.datasets import load_dataset
from coordinator.local_devices.data_folders import device_shares
from coordinator.run_file.loading import load_config

EXAMPLE = Path(__file__).parents[2] / "examples" / "mnist_writers.toml"
DEVICES, ROUNDS = 4, 4


@pytest.fixture
def example(data_folder: Path) -> RunConfig:
    return load_config(EXAMPLE, environ={"APPORTION_DATA": str(data_folder)})


@pytest.mark.data
def test_example_deals_the_thirty_lowest_writers_and_holds_out_unseen_ones(
    example: RunConfig, data_folder: Path
) -> None:
    dataset = load_dataset("mnist-writers", data_folder, seed=1)
    with np.load(data_folder / "mnist.npz") as archive:
        writers, unseen = archive["writer_train"], archive["writer_test"]
    assert not np.intersect1d(writers, unseen).size
    assert len(dataset.y_test) == len(unseen) == 10_000
    shares = device_shares(example, dataset, example.cohort.local_devices)
    lowest = np.unique(writers)[:30]
    assert [sorted(set(writers[share].tolist())) for share in shares] == [[writer] for writer in lowest.tolist()]
    assert sum(len(share) for share in shares) == int(np.isin(writers, lowest).sum()) == 3210


@pytest.mark.data
@pytest.mark.broker
@pytest.mark.slow
@pytest.mark.skipif(find_mosquitto() is None, reason="mosquitto is not installed")
def test_four_writers_learn_together_over_tls(example: RunConfig, tmp_path: Path) -> None:
    small = msgspec.structs.replace(
        example,
        federation=msgspec.structs.replace(example.federation, rounds=ROUNDS),
        model=ModelConfig(build="mlp", input=(1, 28, 28), classes=example.model.classes, options={"hidden": [64]}),
        cohort=msgspec.structs.replace(
            example.cohort, size=DEVICES, min_reports=DEVICES, local=(LocalGroup(count=DEVICES),)
        ),
    )
    summary = start_run(small, tmp_path / "run", RunOptions(quiet=True))
    assert (tmp_path / "run" / "broker" / "mosquitto.conf").read_text().count("certfile") == 1
    assert (summary["devices"], summary["rounds"]) == (DEVICES, ROUNDS)
    assert not summary["torch_loaded_on_devices"]
    assert summary["evaluation"]["models"]["server"]["examples"] == 10_000
    # Four writers have 456 digits; a softmax on all 60,000 reaches 0.91, chance is 0.1.
    assert summary["accuracy"] > 0.6
