"""Features that devices keep: what a run file cannot combine them with, each with the key and the next step."""

from __future__ import annotations

import pytest
from torch import nn

from coordinator.config.canonical import canonical_toml
from coordinator.config.run_config import RunConfig
from coordinator.exporting.cut_exporter import CutExporter, dense_module
from coordinator.run_file.checks import method_of_run
from coordinator.run_file.loading import load_config_text
from coordinator.submodels.values import DeviceProgram
from edge.contracts.errors import ConfigError
from tests.language_models import run_text

TEXT = """
[federation]
name = "kept"
rounds = 8
[model]
build = "tests.federation.tiny_convnet:build"
input = [1, 8, 8]
classes = 10
[data]
source = "digits"
[method]
name = "slt"
rounds = 8
steps = [0.5, 1.0]
levels = [0.5]
norm = "running"
[training]
frozen-norm = "static"
cached-features = "int8"
[cohort]
size = 2
"""


def parse(text: str) -> RunConfig:
    return load_config_text(text)


def refused(text: str) -> str:
    config = parse(text)
    with pytest.raises(ConfigError) as caught:
        method_of_run(config, dense_module(config))
    (problem,) = caught.value.problems
    return problem


def test_run_of_frozen_layers_is_taken_and_its_step_says_so() -> None:
    config = parse(TEXT)
    assert method_of_run(config, dense_module(config)).name == "slt"
    step = CutExporter(config).step(DeviceProgram(frozen=("0.weight",)))
    assert (step.cached_features, step.frozen_norm) == ("int8", "static")
    assert parse(canonical_toml(config)) == config
    plain = parse(TEXT.replace('frozen-norm = "static"\ncached-features = "int8"', "lr = 0.1"))
    assert "frozen-norm" not in canonical_toml(plain)


def test_random_augmentation_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"\$\.data\.augment: \['flip'\] change an example at random .*leave it out"):
        parse(TEXT.replace('source = "digits"', 'source = "digits"\naugment = ["flip"]'))


def test_language_model_has_no_int8() -> None:
    with pytest.raises(ConfigError, match=r"\$\.training\.cached-features: 'int8' is not for language models.*float16"):
        parse(run_text().replace("lr = 0.02", 'lr = 0.02\ncached-features = "int8"'))


def test_norms_that_take_statistics_of_the_batch_are_refused_by_name() -> None:
    text = refused(TEXT.replace('frozen-norm = "static"\n', ""))
    assert text.startswith("$.training.cached-features: 'int8' keeps what frozen layers give")
    assert "the batch norm '1'" in text
    assert text.endswith('set frozen-norm = "static" in [training]')


def test_sparse_update_that_counts_on_kept_features_needs_them() -> None:
    name = 'name = "sparse_update"\nlevels = [0.5]\ncontributions = { "0" = 1.0 }\nfeatures = "kept"'
    text = TEXT[: TEXT.index("[method]")] + f"[method]\n{name}\n" + TEXT[TEXT.index("[training]") :]
    assert method_of_run(parse(text), dense_module(parse(text))).name == "sparse_update"
    assert refused(text.replace('cached-features = "int8"', "")) == (
        '$.method.features: "kept" counts on devices that keep what frozen layers give; set cached-features in '
        "[training], or leave it out"
    )


def test_static_norms_need_statistics_that_are_trained() -> None:
    text = refused(TEXT.replace('norm = "running"', 'norm = "batch"'))
    assert text.startswith("$.training.frozen-norm: 'static' normalises with running statistics, and slt trains")
    assert text.endswith('set norm = "running" in [method]')


def test_method_that_freezes_nothing_is_refused() -> None:
    text = refused(
        TEXT.partition("[method]")[0] + '[method]\nname = "fedavg"\n[training]' + TEXT.partition("[training]")[2]
    )
    assert text == (
        "$.training.cached-features: method fedavg freezes nothing, so there is nothing to keep; leave it out"
    )


def test_model_without_batch_norms_needs_no_static_ones() -> None:
    text = TEXT.replace('frozen-norm = "static"\n', "").replace(
        "classes = 10", "classes = 10\noptions = { norm = false }"
    )
    config = parse(text)
    module = dense_module(config)
    assert not [part for part in module.modules() if isinstance(part, nn.BatchNorm2d)]
    assert method_of_run(config, module).name == "slt"
