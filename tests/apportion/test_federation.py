"""What a federation makes of what it is given, and what it says of what it cannot use."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import apportion
from coordinator.data.datasets import load_dataset
from coordinator.exporting.cut_exporter import dense_module
from coordinator.run_file.loading import load_config, load_config_text
from coordinator.submodels.values import State
from tests.apportion.small_federation import digits, perceptron, small

ROOT = Path(__file__).parents[2]
DIGITS = ROOT / "examples" / "digits.toml"


def importable(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """A builder that another process can import."""
    return nn.Linear(input_shape[0], classes)


def importable_data(path: Path | None, seed: int, holdout: float) -> apportion.Dataset:
    """A source that another process can import."""
    x, y = digits(90)
    return apportion.Dataset(x[:60], y[:60], x[60:], y[60:], tuple(str(i) for i in range(10)))


def test_a_run_file_alone_is_that_run_file() -> None:
    assert apportion.Federation(DIGITS).config == load_config(DIGITS)


def test_what_is_given_beside_a_file_changes_that_alone() -> None:
    config = apportion.Federation(DIGITS, rounds=2, seed=9, training={"batch": 8}, evaluation={"every": 0}).config
    written = load_config(DIGITS)
    assert (config.federation.rounds, config.federation.seed, config.federation.name) == (2, 9, "digits")
    assert (config.training.batch, config.training.lr) == (8, written.training.lr)
    assert config.evaluation.every == 0
    assert config.cohort == written.cohort


def test_train_is_the_whole_table() -> None:
    config = apportion.Federation(DIGITS, training=apportion.Train(steps=3)).config
    assert config.training == apportion.Train(steps=3, epochs=0)


def test_groups_are_read_in_either_spelling() -> None:
    groups = [{"match": "*.bias", "weight_decay": 0}, {"match": "fc1.*", "lr-factor": 3}]
    training = apportion.Federation(DIGITS, training={"groups": groups}).config.training
    assert [(g.match, g.lr_factor, g.weight_decay) for g in training.groups] == [("*.bias", 1, 0), ("fc1.*", 3, None)]
    assert apportion.Federation(DIGITS, training=training).config.training == training


def test_module_is_copied_with_its_weights_when_it_is_given() -> None:
    module = perceptron()
    weights = module[0].weight.detach().clone()  # type: ignore[index]
    config = small(model=module).config
    with torch.no_grad():
        module[0].weight.add_(1)  # type: ignore[index]
    built = dense_module(config)
    assert torch.equal(built.state_dict()["0.weight"], weights)
    assert dense_module(config) is not built


def test_equal_modules_have_one_name_and_others_another() -> None:
    assert small(model=perceptron(1)).config.model.build == small(model=perceptron(1)).config.model.build
    assert small(model=perceptron(1)).config.model.build != small(model=perceptron(2)).config.model.build


def test_functions_of_one_text_are_told_apart() -> None:
    def builder(width: int) -> type[nn.Module]:
        return lambda: nn.Linear(64, width)  # type: ignore[return-value]

    ten, eleven = builder(10), builder(11)
    names = [small(model=function).config.model.build for function in (ten, eleven, ten)]
    assert names[0] == names[2] != names[1]
    assert dense_module(small(model=eleven).config).out_features == 11


def test_importable_builder_keeps_its_path() -> None:
    federation = small(model=importable)
    assert federation.config.model.build == "tests.apportion.test_federation:importable"
    assert small(model=importable, data=importable_data).config.data.source.endswith("test_federation:importable_data")
    assert dense_module(federation.config).in_features == 64


def test_shape_and_classes_follow_from_the_arrays() -> None:
    model = small().config.model
    assert (model.input, model.classes) == ((64,), tuple("0123456789"))


def test_two_arrays_are_split_and_four_are_not() -> None:
    x, y = digits(100)
    data = small(data=(x, y), evaluation={"holdout": 0.25}).config.data
    found = load_dataset(data.source, None, 0, 0.25)
    assert (len(found.y_train), len(found.y_test)) == (75, 25)
    assert sorted(map(tuple, np.concatenate([found.x_train, found.x_test]))) == sorted(map(tuple, x))
    data = small(data=(x[:90], y[:90], x[90:], y[90:])).config.data
    found = load_dataset(data.source, None, 0, 0.25)
    assert np.array_equal(found.x_train, x[:90])
    assert np.array_equal(found.y_test, y[90:])


def test_names_of_classes_become_indices() -> None:
    x, _ = digits(6)
    federation = small(data=(x, np.array(["hum", "bang", "hum", "bang", "hum", "bang"])), devices=2)
    assert federation.config.model.classes == ("bang", "hum")
    found = load_dataset(federation.config.data.source, None, 0, 1 / 3)
    assert set(found.y_train) | set(found.y_test) == {0, 1}


def test_folder_and_function_give_the_same_examples(tmp_path: Path) -> None:
    x, y = digits(60)
    np.savez(tmp_path / "a.npz", x=x, y=y)
    from_folder = small(data=tmp_path).config
    from_function = small(data=lambda: (x, y), model=importable_model_table()).config
    for config in (from_folder, from_function):
        found = load_dataset(config.data.source, None, 0, 0.5)
        assert len(found.y_train) == len(found.y_test) == 30
    assert from_folder.data.source == small(data=(x, y)).config.data.source


def importable_model_table() -> dict[str, object]:
    return {"build": importable, "input": (64,), "classes": 10}


def test_data_says_how_it_is_dealt_out() -> None:
    config = small(data=apportion.Data(digits(), partition="dirichlet", alpha=0.3, scale=0.5)).config
    assert (config.data.partition, config.data.alpha, config.data.scale) == ("dirichlet", 0.3, 0.5)


def test_groups_of_devices_and_a_method_with_options() -> None:
    groups = [apportion.LocalDevices(count=2, budget_mb=160), {"count": 1, "budget_mb": 90}]
    config = small(devices=groups, method="fedavg")
    assert [(group.count, group.budget_mb) for group in config.config.cohort.local] == [(2, 160.0), (1, 90.0)]
    assert small(method=apportion.Method("fedhm", levels=[1, 4])).config.method.options == {"levels": [1, 4]}


def test_a_class_of_ones_own_is_the_method(tmp_path: Path) -> None:
    class Halved(apportion.method_class("fedavg")):  # type: ignore[misc]
        """The model moves half as far as under FedAvg."""

        def aggregate(self, state: State, updates: Any, rule: Any) -> State:
            new = super().aggregate(state, updates, rule)
            return replace(new, tensors={n: (v + state.tensors[n]) / 2 for n, v in new.tensors.items()})

    start = perceptron().state_dict()["0.bias"]
    moved = [
        (small(method=method, rounds=1).simulate(tmp_path / name, quiet=True).state_dict()["0.bias"] - start)
        for name, method in (("halved", Halved), ("whole", "fedavg"))
    ]
    assert torch.allclose(2 * moved[0], moved[1], atol=1e-6)
    assert moved[1].abs().max() > 1e-3


def test_every_problem_is_told_with_its_path() -> None:
    with pytest.raises(apportion.ConfigError) as caught:
        small(training={"lr": -1.0, "bach": 3}, method="fedavgg", cohort={"min-reports": 9})
    text = str(caught.value)
    assert "$.training.lr: -1.0 is outside" in text
    assert "$.training.bach: unknown key, did you mean 'batch'?" in text
    assert "$.method.name: 'fedavgg' is not known, did you mean 'fedavg'?" in text
    assert "$.cohort.min-reports: 9 is more than the 4 devices" in text


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ((np.zeros((3, 2)), np.zeros(4, int)), "x has shape (3, 2) and y (4,)"),
        ((np.zeros((3, 2)),), "1 values given"),
        (7, "int given"),
        ((np.zeros((3, 2)), np.zeros(3)), "labels of type float64"),
        ((np.zeros((3, 2)), np.array([0, -1, 1])), "a label below 0"),
        ((np.array([[{}], [{}]]), np.array([0, 1])), "Python objects"),
    ],
)
def test_data_that_cannot_be_used_is_named(data: object, words: str) -> None:
    with pytest.raises(apportion.ConfigError) as caught:
        small(data=data)
    assert words in str(caught.value)
    assert str(caught.value).splitlines()[1].strip().startswith("$.data.source")


def test_a_model_that_is_none_and_a_table_that_is_none_are_named() -> None:
    with pytest.raises(apportion.ConfigError, match=r"\$\.model\.build: a int given"):
        small(model=3)
    with pytest.raises(apportion.ConfigError, match=r"\$\.evaluation: a str given; a table expected"):
        small(evaluation="batch")
    with pytest.raises(apportion.ConfigError, match=r"\$\.evalution: unknown key, did you mean 'evaluation'\?"):
        small(evalution={})
    with pytest.raises(apportion.ConfigError, match=r"no_such\.toml: cannot be read"):
        apportion.Federation("no_such.toml")


def test_several_workers_cannot_have_an_object() -> None:
    with pytest.raises(
        apportion.ConfigError, match=r"workers: 2 processes cannot have a model .* \(apportion\.given:Sequential"
    ):
        small().simulate(workers=2)


def test_an_object_of_another_process_is_told_as_such() -> None:
    text = DIGITS.read_text().replace('build = "mlp"', 'build = "apportion.given:Net_0123"')
    with pytest.raises(apportion.ConfigError, match="an object that another Python process was given; build the same"):
        dense_module(load_config_text(text, folder=DIGITS.parent))


def test_unknown_name_of_the_package_lists_the_known_ones() -> None:
    with pytest.raises(AttributeError, match=r"no name 'Fedration'; it has .*Federation"):
        apportion.Fedration  # noqa: B018
    assert set(dir(apportion)) == set(apportion.NAMES) == set(apportion.__all__)
    assert all(getattr(apportion, name) is not None for name in apportion.NAMES)
    stub = (ROOT / "apportion" / "__init__.pyi").read_text(encoding="utf-8")
    typed = re.findall(r"^from (\S+) import (\w+) as (\w+)$", stub, re.M)
    assert {public: f"{module}:{name}" for module, name, public in typed} == apportion.NAMES


def test_repr_says_what_it_is() -> None:
    assert repr(apportion.Federation(DIGITS)) == "Federation('digits': mlp, fedhm, 10 rounds, 8 devices in a round)"
