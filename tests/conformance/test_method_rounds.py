"""Two real rounds of every registered method: MQTT broker, agent processes, a tiny convnet, ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coordinator.cli.assembly import RunOptions, start_run
from coordinator.cli.exporting import dense_module
from coordinator.configuration_file import load_config_text
from coordinator.methods import METHODS, build_method
from edge.contracts.tensor_file import encode_tensors, read_tensor_file

pytestmark = [pytest.mark.broker, pytest.mark.runtime, pytest.mark.slow]

ROUNDS = 2
DEVICES = 2

OPTIONS = {
    # What a device with one level of several would not show: the narrow cut, nested widths, more atoms than one.
    "heterofl": "levels = [0.5]",
    "fedrolex": "levels = [0.5]",
    "federated_dropout": "levels = [0.5]",
    "fjord": "levels = [0.75, 0.5]",
    "split_mix": "levels = [2]",
    "small_model": "levels = [0.5]",
    "slt": "levels = [0.9]",
    "fedhm": "levels = [4]\nlayout = ['4']",
    "synflow": "input = [1, 8, 8]\npasses = 5",
}
"""Lines of ``[method]`` beside the name."""

CONVNET = """
[model]
build = "tests.federation.tiny_convnet:build"
input = [1, 8, 8]
classes = 10
options = { width = 8 }

[data]
source = "tests.federation.tiny_convnet:digit_images"
scale = 0.0625
"""

LINEAR = """
[model]
build = "mlp"
input = [64]
classes = 10
options = { hidden = [48, 32] }

[data]
source = "digits"
scale = 0.0625
"""

MODELS = {"fedlora": LINEAR}
"""Methods that do not cut convolutions."""


def config_text(method: str, options: str) -> str:
    return f"""
[federation]
name = "rounds"
seed = 5
rounds = {ROUNDS}

{MODELS.get(method, CONVNET)}
[method]
name = "{method}"
{options}

[training]
steps = 4
batch = 16
lr = 0.05
momentum = 0.9
weight-decay = 0.0001

[evaluation]
every = 0

[cohort]
deadline-s = 120
[[cohort.local]]
count = {DEVICES}

[broker]
url = "embedded"
"""


def method_options(name: str, folder: Path) -> str:
    if name != "lottery_ticket":
        return OPTIONS.get(name, "")
    module = dense_module(load_config_text(config_text("fedavg", "")))
    generator = np.random.default_rng(0)
    kept = {n: v.numpy() * (generator.random(tuple(v.shape)) < 0.5) for n, v in module.state_dict().items()}
    path = folder / "ticket.safetensors"
    path.write_bytes(encode_tensors({n: v.astype(np.float32) for n, v in kept.items()}))
    return f'mask-file = "{path}"'


def summary_of(name: str, folder: Path) -> tuple[dict[str, Any], str]:
    text = config_text(name, method_options(name, folder))
    return start_run(load_config_text(text), folder / "run", RunOptions(quiet=True)), text


@pytest.mark.parametrize("name", sorted(METHODS))
def test_two_rounds_over_mqtt_train_and_give_the_model_that_torch_has(name: str, tmp_path: Path) -> None:
    summary, text = summary_of(name, tmp_path)
    assert summary["committed_rounds"] >= ROUNDS
    assert not summary["torch_loaded_on_devices"]
    assert summary["evaluation"]["onnx_predictions_equal"]
    config = load_config_text(text)
    method = build_method(name, dense_module(config), config.method.options)
    before = method.init().tensors
    after = read_tensor_file(tmp_path / "run" / "checkpoints" / "final.safetensors", where="final model")
    assert after.keys() == before.keys()
    assert all(after[n].shape == v.shape and np.isfinite(after[n]).all() for n, v in before.items())
    assert sum(not np.array_equal(after[n], v) for n, v in before.items()) >= 2
