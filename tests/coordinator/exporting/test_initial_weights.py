"""Runs that start from given weights: what is loaded, what is left, and every way in which a file does not fit."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from coordinator.config.canonical import canonical_toml
from coordinator.exporting.cut_exporter import dense_module
from coordinator.exporting.initial_weights import load_initial_weights
from coordinator.run_file.loading import load_config_text
from edge.contracts.errors import ConfigError
from edge.contracts.tensor_file import encode_tensors

RUN = """
[federation]
name = "fed"
rounds = 1
[model]
build = "mlp"
options = { hidden = [6] }
weights = "base.safetensors"
[method]
name = "fedavg"
[data]
source = "digits"
[cohort]
size = 1
"""


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def tensors(**changes: np.ndarray | None) -> dict[str, np.ndarray]:
    """Sevens in every tensor of :func:`net`, but for ``changes`` (None: not there)."""
    given = {name: np.full(value.shape, 7, value.numpy().dtype) for name, value in net().state_dict().items()}
    return {name: value for name, value in {**given, **changes}.items() if value is not None}


def written(folder: Path, values: dict[str, np.ndarray]) -> Path:
    path = folder / "base.safetensors"
    path.write_bytes(encode_tensors(values))
    return path


def problems(module: nn.Module, path: Path, *exceptions: str) -> str:
    before = {name: value.clone() for name, value in module.state_dict().items()}
    with pytest.raises(ConfigError) as caught:
        load_initial_weights(module, path, exceptions)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    return str(caught.value)


def test_every_parameter_and_buffer_is_the_files(tmp_path: Path) -> None:
    module = net()
    load_initial_weights(module, written(tmp_path, tensors()))
    assert all((value == 7).all() for value in module.state_dict().values())


def test_exceptions_keep_their_values_whatever_the_file_has(tmp_path: Path) -> None:
    module = net()
    head = {name: value.clone() for name, value in module[2].state_dict().items()}
    path = written(tmp_path, tensors(**{"2.weight": np.zeros((1000, 4), np.float32), "2.bias": None}))
    load_initial_weights(module, path, ("2.*",))
    assert all(torch.equal(value, head[name]) for name, value in module[2].state_dict().items())
    assert (module[0].weight == 7).all()


def test_all_that_does_not_fit_is_named_at_once(tmp_path: Path) -> None:
    wrong = {
        "0.weight": np.zeros((4, 5), np.float32),
        "0.bias": np.zeros(4, np.float16),
        "2.bias": None,
        "fc.bias": np.zeros(2, np.float32),
    }
    text = problems(net(), written(tmp_path, tensors(**wrong)), "norm.*")
    assert "'0.weight' is float32 [4, 5], float32 [4, 3] expected" in text
    assert "'0.bias' is float16 [4], float32 [4] expected" in text
    assert "lacks 2.bias" in text
    assert "has fc.bias" in text
    assert "'norm.*' names no tensor" in text


def test_pickle_is_refused_and_not_opened(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[object, tuple[str, str]]:
            return (open, (str(tmp_path / "opened"), "w"))

    path = tmp_path / "base.safetensors"
    path.write_bytes(pickle.dumps(Bomb()))
    assert "never opened" in problems(net(), path)
    assert not (tmp_path / "opened").exists()


@pytest.mark.parametrize(
    "header", [b'{"0.weight":{"dtype":"F32","shape":[35184372088832],"data_offsets":[0,140737488355328]}}', b"{" * 99]
)
def test_hostile_header_is_refused_by_name(tmp_path: Path, header: bytes) -> None:
    """A tensor of 2^47 bytes, and a text that is no JSON; a length of 2^63 in front of nothing."""
    path = tmp_path / "base.safetensors"
    for length in (len(header), 2**63 - 1):
        path.write_bytes(length.to_bytes(8, "little") + header)
        assert f"{path} cannot be read as safetensors" in problems(net(), path)


def test_missing_file_is_refused_with_the_run_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"\$\.model\.weights: .*base\.safetensors: no such file"):
        load_config_text(RUN, folder=tmp_path)
    with pytest.raises(ConfigError, match=r"\$\.model\.weights-except: belongs to weights"):
        load_config_text(RUN.replace('weights = "base.safetensors"', 'weights-except = ["head.*"]'), folder=tmp_path)


def test_run_starts_from_the_file_beside_it(tmp_path: Path) -> None:
    plain = dense_module(load_config_text(RUN.replace('weights = "base.safetensors"', ""), folder=tmp_path))
    given = {name: value.numpy() + 1 for name, value in plain.state_dict().items()}
    written(tmp_path, given)
    config = load_config_text(RUN, folder=tmp_path)
    module = dense_module(config)
    assert all(np.array_equal(value.numpy(), given[name]) for name, value in module.state_dict().items())
    again = load_config_text(canonical_toml(config), folder=Path("/elsewhere"))
    assert again.model == config.model
