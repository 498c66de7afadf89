"""``apportion data make``: what it writes is read by the sources and by devices, and every example opens with it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from coordinator.data.datasets import load_dataset
from coordinator.data.made import make
from coordinator.exporting.cut_exporter import run_input_spec
from coordinator.local_devices.data_folders import device_shares
from coordinator.run_file.loading import load_config
from edge.contracts.errors import ConfigError
from edge.training.local_data import read_local_data
from tests.cli.conftest import Command, command
from tests.examples.run_files import EXAMPLES, FILES, make_stand_ins

__all__ = ["command"]


@pytest.fixture(scope="module")
def stand_ins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_stand_ins(tmp_path_factory.mktemp("stand-ins"), examples=2500)


@pytest.mark.parametrize("path", FILES, ids=[str(path.relative_to(EXAMPLES)) for path in FILES])
def test_every_example_opens_and_deals_the_data_that_is_made_for_it(path: Path, stand_ins: Path) -> None:
    config = load_config(path, environ={"APPORTION_DATA": str(stand_ins)})
    data = load_dataset(config.data.source, stand_ins, config.federation.seed, config.evaluation.holdout)
    assert data.x_train.shape[1:] == run_input_spec(config).shape
    shares = device_shares(config, data, max(config.cohort.local_devices, config.data.devices))
    assert min(map(len, shares)) >= 1


@pytest.mark.parametrize("path", FILES, ids=[str(path.relative_to(EXAMPLES)) for path in FILES])
def test_every_example_that_reads_files_names_the_command_that_makes_them(path: Path, tmp_path: Path) -> None:
    source = load_config(path, environ={"APPORTION_DATA": str(tmp_path)}).data.source
    name = "cifar10" if source == "benchmarks.half_size_cifar10:load" else source
    if name == "digits":
        assert "APPORTION_DATA" not in path.read_text()  # it comes with scikit-learn
    else:
        assert f"apportion data make {name} " in path.read_text()


def test_real_data_is_dealt_and_nothing_twice(tmp_path: Path) -> None:
    made = make("digits", tmp_path, devices=3)
    shares = [read_local_data(str(path.parent)) for path in made.files]
    assert [path.parent.name for path in made.files] == ["device-0", "device-1", "device-2", "test"]
    assert sum(map(len, shares)) == 1797
    assert [made.train, made.test] == [1438, 359]
    rows = np.concatenate([np.asarray(share.x) for share in shares])
    assert rows.shape == (1797, 64)


def test_a_stand_in_is_the_same_for_the_same_seed(tmp_path: Path) -> None:
    one, same, other = (make("cifar10", tmp_path / n, examples=100, seed=s) for n, s in (("a", 1), ("b", 1), ("c", 2)))
    x = [np.load(made.files[0])["x_train"] for made in (one, same, other)]
    assert x[0].shape == (80, 3, 32, 32)
    assert np.array_equal(x[0], x[1])
    assert not np.array_equal(x[0], x[2])


def test_an_unknown_name_lists_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'imagenet' cannot be made; known: breast-cancer, digits, wine, cifar10"):
        make("imagenet", tmp_path)
    assert not list(tmp_path.iterdir())


def test_more_devices_than_examples_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="for 500 devices"):
        make("wine", tmp_path, devices=500)


def test_the_command_says_that_a_stand_in_is_one(command: Command, tmp_path: Path) -> None:
    outcome = command("data", "make", "movie-reviews", tmp_path, "--examples", "100", "--json")
    assert outcome.status == 0
    assert outcome.line["stand_in"] is True
    assert [Path(path).name for path in outcome.line["files"]] == ["movie_reviews.npz"]
