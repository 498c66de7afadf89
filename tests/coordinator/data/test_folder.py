"""Folders at the coordinator: what a device would read, held out by a share, by sub-folders, or given apart."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from coordinator.config.canonical import canonical_toml
from coordinator.data.datasets import load_dataset
from coordinator.data.folder import Takes
from coordinator.run_file.loading import load_config_text
from edge.contracts.errors import ConfigError, DataError
from edge.contracts.manifest import InputSpec

IMAGES = Takes(InputSpec(layout="chw", shape=(3, 4, 4)), ("cat", "dog"))
ROWS = Takes(InputSpec(layout="features", shape=(2,)), ("0", "1"))


def images(folder: Path, count: int = 3) -> Path:
    for index, name in enumerate(("cat", "dog")):
        (folder / name).mkdir(parents=True)
        for number in range(count):
            Image.new("RGB", (8, 8), (index * 100, number, 7)).save(folder / name / f"{number}.png")
    return folder


def rows(folder: Path, count: int) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / "d.npz", x=np.arange(2.0 * count).reshape(count, 2), y=np.arange(count) % 2)
    return folder


def test_images_become_arrays_of_the_models_size_and_its_classes(tmp_path: Path) -> None:
    data = load_dataset("folder", images(tmp_path), 0, 1 / 3, takes=IMAGES)
    assert (data.x_train.shape, data.x_test.shape) == ((4, 3, 4, 4), (2, 3, 4, 4))
    assert data.x_train.dtype == np.uint8
    red = data.x_train[:, 0, 0, 0]
    assert data.y_train.tolist() == (red // 100).tolist()
    assert data.classes == ("cat", "dog")


def test_nothing_is_both_trained_and_held_out_and_a_seed_decides(tmp_path: Path) -> None:
    rows(tmp_path, 9)
    parts = [load_dataset("folder", tmp_path, seed, 1 / 3, takes=ROWS) for seed in (1, 1, 2)]
    for data in parts:
        firsts = np.concatenate([data.x_train[:, 0], data.x_test[:, 0]])
        assert sorted(firsts.tolist()) == [2.0 * n for n in range(9)]
    held = [data.x_test[:, 0].tolist() for data in parts]
    assert held[0] == held[1]
    assert held[0] != held[2]


def test_sub_folders_train_and_test_are_the_division(tmp_path: Path) -> None:
    rows(tmp_path / "train", 5)
    rows(tmp_path / "test", 2)
    data = load_dataset("folder", tmp_path, 0, takes=ROWS)
    assert (len(data.x_train), len(data.x_test)) == (5, 2)


def test_held_out_data_apart_leaves_the_whole_folder_for_training(tmp_path: Path) -> None:
    data = load_dataset("folder", rows(tmp_path / "a", 5), 0, takes=ROWS, held_out=rows(tmp_path / "b", 2))
    assert (len(data.x_train), len(data.x_test)) == (5, 2)


def test_held_out_data_replaces_that_of_another_source(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", x=np.ones((3, 8, 8)), y=[1, 2, 3])
    takes = Takes(InputSpec(layout="features", shape=(64,)), tuple("0123456789"))
    data = load_dataset("digits", None, 0, takes=takes, held_out=tmp_path)
    assert len(data.x_train) > 1000
    assert (data.x_test.tolist(), data.y_test.tolist()) == ([[1.0] * 64] * 3, [1, 2, 3])


def test_held_out_data_alone_is_enough_where_devices_bring_theirs(tmp_path: Path) -> None:
    data = load_dataset("", None, 0, takes=ROWS, held_out=rows(tmp_path, 4))
    assert (data.x_train.shape, data.x_test.shape) == ((0, 2), (4, 2))


def test_too_few_to_hold_some_out_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"2 examples, of which \$\.evaluation\.holdout = 0\.333333 holds out none"):
        load_dataset("folder", rows(tmp_path, 2), 0, takes=ROWS)


def test_a_class_that_the_run_does_not_name_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="unknown classes \\['dog'\\]"):
        load_dataset("folder", images(tmp_path), 0, takes=Takes(IMAGES.input, ("cat", "bird")))


def run_text(data: str, evaluation: str, cohort: str = "size = 2") -> str:
    return f"""
[federation]
name = "fed"
rounds = 1
[model]
build = "mlp"
[method]
name = "fedavg"
[data]
{data}
[evaluation]
{evaluation}
[cohort]
{cohort}
"""


def test_a_run_file_needs_no_source_beside_held_out_data(tmp_path: Path) -> None:
    rows(tmp_path / "held", 4)
    config = load_config_text(run_text("scale = 0.5", 'data = "held"'), folder=tmp_path)
    assert (config.data.source, config.evaluation.data) == ("", str(tmp_path / "held"))
    assert load_config_text(canonical_toml(config)) == config


@pytest.mark.parametrize(
    ("data", "evaluation", "cohort", "named"),
    [
        ("scale = 0.5", 'data = "none-here"', "size = 2", "$.evaluation.data: "),
        ("scale = 0.5", "every = 1", "size = 2", "$.data.source: is missing"),
        ("scale = 0.5", 'data = "."', "[[cohort.local]]\ncount = 2", "$.data.source: is missing"),
        ('source = "folder"\npath = "none-here"', "every = 1", "size = 2", "$.data.path: "),
    ],
)
def test_a_run_file_without_what_it_needs_is_refused(
    data: str, evaluation: str, cohort: str, named: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config_text(run_text(data, evaluation, cohort), folder=tmp_path, environ={})
    assert any(problem.startswith(named) for problem in caught.value.problems)
