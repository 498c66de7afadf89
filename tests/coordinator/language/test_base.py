"""The base file of a language model: its bytes, its values, and what does not fit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from coordinator.exporting.cut_exporter import dense_module, run_input_spec
from coordinator.language.base import base_bytes, write_base
from coordinator.language.random_weights import random_values
from coordinator.language.source import source_of
from coordinator.models.catalog import build_model
from coordinator.run_file.loading import load_config_text
from coordinator.submodels.build import apply_cut
from coordinator.submodels.record import Factor, LayerCut
from edge.contracts.errors import ConfigError, StoreFull
from edge.contracts.tensor_file import encode_tensors, read_tensor_file
from export.language.architecture import PUBLIC
from export.language.base_weights import dequantised, held, matrices
from export.language.causal_model import CausalModel, meta_model
from export.language.held_base import with_base
from tests.language_models import PARTS, TINY


def written(folder: Path, module: CausalModel, seed: int = 1) -> Path:
    write_base(folder / "base.safetensors", module, random_values(TINY, seed))
    return folder / "base.safetensors"


@pytest.mark.parametrize("precision", ["int8", "float16", "float32"])
def test_the_file_has_the_bytes_of_its_tensors_encoded_whole(tmp_path: Path, precision: str) -> None:
    module = meta_model(TINY, precision)  # type: ignore[arg-type]
    tensors: dict[str, np.ndarray] = {}
    for name, value in random_values(TINY, 1):
        tensors |= held(name, value, precision) if name in matrices(module) else {name: value}  # type: ignore[arg-type]
    data = written(tmp_path, module).read_bytes()
    assert data == encode_tensors(tensors)
    assert len(data) == base_bytes(module)


def test_values_are_a_function_of_the_seed() -> None:
    first, second = dict(random_values(TINY, 1)), dict(random_values(TINY, 1))
    other = dict(random_values(TINY, 2))
    assert all(np.array_equal(first[name], second[name]) for name in first)
    assert not np.array_equal(first["embedding.weight"], other["embedding.weight"])
    assert first["embedding.weight"].std() == pytest.approx(0.02, rel=0.1)
    assert first["blocks.0.attention.output.weight"].std() == pytest.approx(0.02 / 2, rel=0.15)
    assert (first["norm.weight"] == 1).all()


def test_torch_computes_with_what_the_file_holds(tmp_path: Path) -> None:
    module = meta_model(TINY)
    base = read_tensor_file(written(tmp_path, module), where="base")
    made = with_base(module, random_values(TINY, 1))
    assert not list(made.parameters())
    assert np.array_equal(made.embedding.weight.numpy(), dequantised("embedding.weight", base))
    assert made(torch.zeros(2, 5, dtype=torch.int64)).shape == (2, 30, 5)


def test_a_cut_shares_the_base_and_trains_factors_alone() -> None:
    made = with_base(meta_model(TINY), random_values(TINY, 1))
    path = "blocks.1.attention.qkv"
    cut = apply_cut(made, {path: LayerCut(factor=Factor("additive_lora", (0, 1)))})
    assert {name for name, _ in cut.named_parameters()} == {f"{path}.u", f"{path}.v"}
    assert cut.get_submodule(path).weight.data_ptr() == made.get_submodule(path).weight.data_ptr()
    assert cut.embedding.weight.data_ptr() == made.embedding.weight.data_ptr()
    x = torch.arange(10).reshape(2, 5)
    assert torch.equal(cut(x), made(x))  # u is zero
    cut(x).sum().backward()
    assert cut.get_submodule(path).u.grad is not None


def test_values_of_another_model_are_refused_by_name(tmp_path: Path) -> None:
    values = [("norm.weight", np.ones(3, np.float32)), ("strange", np.ones(1, np.float32))]
    with pytest.raises(ConfigError, match=r"'norm.weight' \[3\], \[16\] expected; 'strange' \[1\], the model has no"):
        write_base(tmp_path / "base", meta_model(TINY), values)


def test_a_full_disk_says_how_much_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StoreFull, match=r"base file needs [0-9]+ bytes"):
        write_base(Path("/dev/full"), meta_model(TINY), random_values(TINY, 1))


RUN = """
[federation]
name = "words"
rounds = 1
[model]
build = "language:custom"
input = [8]
[model.options]
base = "{base}"
[model.options.architecture]
{parts}
[task]
name = "next-token"
[method]
name = "fedlora"
levels = [2]
[data]
source = "somebody:text"
[cohort]
size = 1
[[cohort.local]]
count = 1
"""


def run_text(base: str = "int8", **parts: object) -> str:
    def toml(value: object) -> str:
        return str(value).lower() if isinstance(value, bool) else repr(value).replace("'", '"')

    lines = "\n".join(f"{key} = {toml(value)}" for key, value in {**PARTS, **parts}.items())
    return RUN.format(base=base, parts=lines)


def test_a_run_file_names_a_language_model_without_its_classes() -> None:
    config = load_config_text(run_text(base="float16"))
    module = dense_module(config)
    assert isinstance(module, CausalModel)
    assert module.architecture == TINY
    assert module.base_precision == "float16"
    assert all(value.is_meta and not value.requires_grad for value in module.parameters())
    spec = run_input_spec(config)
    assert (spec.layout, spec.shape, spec.vocabulary) == ("tokens", (8,), 30)


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_public_shapes_are_built_without_memory(name: str) -> None:
    module = build_model(f"language:{name}", input_shape=(64,), classes=1)
    assert isinstance(module, CausalModel)
    assert base_bytes(module) > 100e6


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (run_text(base="int5"), "'int5' given, one of float32, float16, int8, int4 expected"),
        (run_text(heads=3), "16 |3 heads|2 heads"),
        (run_text(wings=2), r"architecture\.wings: no part of an architecture"),
        (run_text().replace("input = [8]", "input = [25]"), "windows of 25 symbols, the model takes 1 to 24"),
    ],
)
def test_a_model_that_cannot_be_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        dense_module(load_config_text(text))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (run_text().replace('"next-token"', '"regression"'), "'regression' given; language:custom is trained for"),
        (run_text().replace("[model.options]", 'weights = "x"\n[model.options]'), "has its values in a base"),
    ],
)
def test_a_run_that_cannot_be_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config_text(text)


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"neither a known shape \(gemma-3-270m, gpt2, .* nor a folder"):
        source_of("gpt5", {})
