"""Where the proxy set comes from: held back from the run's data, a source of its own, or refused with the option."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from coordinator.config.method_options import Options
from coordinator.data.datasets import Dataset
from coordinator.distillation.proxy import ProxySet
from edge.contracts.errors import ConfigError, DataError
from edge.contracts.manifest import InputSpec

SPEC = InputSpec(layout="features", shape=(3,), scale=0.5, mean=(1.0,), std=(2.0,))
IMAGES = "tests.federation.proxy_images:build"


def dataset(count: int = 20) -> Dataset:
    x = np.arange(count * 3, dtype=np.float32).reshape(count, 3)
    y = np.arange(count, dtype=np.int64) % 4
    return Dataset(x, y, x[:2], y[:2], ("a", "b", "c", "d"), owner_train=np.arange(count))


def proxy(**options: Any) -> ProxySet:
    read = Options("feddf", {key.replace("_", "-"): value for key, value in options.items()})
    found = ProxySet("feddf", read)
    read.finish()
    return found


def test_held_back_examples_are_taken_from_the_devices_and_normalised() -> None:
    own, found = dataset(), proxy(proxy="held-back", proxy_examples=5)
    rest = found.open(SPEC, own, seed=3)
    assert rest is not None
    assert len(rest.x_train) == len(rest.y_train) == 15
    assert rest.owner_train is not None
    assert len(rest.owner_train) == 15
    inputs = found.inputs(SPEC)
    assert inputs.shape == (5, 3)
    raw = (inputs * 2 + 1) / 0.5
    taken = {tuple(row) for row in np.rint(raw).astype(int).tolist()}
    left = {tuple(row) for row in rest.x_train.astype(int).tolist()}
    assert not taken & left
    assert taken | left == {tuple(row) for row in own.x_train.astype(int).tolist()}
    assert np.array_equal(own.x_train[rest.owner_train], rest.x_train)
    assert np.array_equal(own.y_train[rest.owner_train], rest.y_train)
    assert rest.x_test is own.x_test


def test_held_back_examples_follow_the_seed() -> None:
    drawn = []
    for seed in (1, 1, 2):
        found = proxy(proxy="held-back", proxy_examples=5)
        found.open(SPEC, dataset(), seed=seed)
        drawn.append(found.inputs(SPEC))
    assert np.array_equal(drawn[0], drawn[1])
    assert not np.array_equal(drawn[0], drawn[2])


def test_labels_of_the_source_do_not_matter() -> None:
    own = dataset()
    found = []
    for y in (own.y_train, own.y_train[::-1]):
        each = proxy(proxy="held-back", proxy_examples=5)
        each.open(SPEC, replace(own, y_train=y), seed=3)
        found.append(each.inputs(SPEC))
    assert np.array_equal(found[0], found[1])


def test_source_of_its_own_leaves_the_runs_data_whole() -> None:
    own, spec = dataset(), InputSpec(layout="chw", shape=(3, 4, 4))
    found = proxy(proxy=IMAGES, proxy_examples=8)
    assert found.open(spec, own) is own
    assert found.inputs(spec).shape == (8, 3, 4, 4)


def test_source_of_its_own_is_taken_whole_unless_told() -> None:
    assert len(proxy(proxy=IMAGES).inputs(InputSpec(layout="chw", shape=(3, 4, 4)))) == 40


def test_source_of_examples_of_another_shape_is_refused_with_both() -> None:
    with pytest.raises(DataError, match=r"\(3, 4, 4\).*\(5,\)"):
        proxy(proxy=IMAGES).open(InputSpec(layout="features", shape=(5,)))


def test_no_source_is_refused_with_the_option() -> None:
    with pytest.raises(ConfigError, match=r"\$\.method\.proxy: feddf .*held-back"):
        proxy().open(SPEC, dataset())


@pytest.mark.parametrize("options", [{"proxy": "held-back"}, {"proxy": "held-back", "proxy_examples": 20}])
def test_held_back_number_must_be_given_and_leave_something(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"\$\.method\.proxy-examples"):
        proxy(**options).open(SPEC, dataset())


@pytest.mark.parametrize("count", [1, 41])
def test_number_of_examples_must_be_there(count: int) -> None:
    with pytest.raises(ConfigError, match=rf"\$\.method\.proxy-examples: {count} given, 2 to 40 expected"):
        proxy(proxy=IMAGES, proxy_examples=count).open(InputSpec(layout="chw", shape=(3, 4, 4)))


def test_held_back_without_a_dataset_is_refused() -> None:
    with pytest.raises(ConfigError, match="held-back"):
        proxy(proxy="held-back", proxy_examples=3).inputs(SPEC)


def test_unknown_source_is_refused_and_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"\$\.method\.proxy: 'nowhere' .*cifar10"):
        proxy(proxy="nowhere").open(SPEC)


@pytest.mark.parametrize("value", [3, "", ["digits"]])
def test_source_must_be_text(value: object) -> None:
    with pytest.raises(ConfigError, match=r"\$\.method\.proxy: "):
        proxy(proxy=value)
