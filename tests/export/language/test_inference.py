"""The graph that writes text against the torch module, symbol by symbol, of every family and precision."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import onnxruntime as ort
import pytest
import torch

from edge.contracts.errors import DeviceRefused
from edge.runtimes.onnxruntime.generation import load
from export.language.architecture import PUBLIC, Architecture
from export.language.base_weights import dequantised, held, matrices
from export.language.causal_model import CausalModel, meta_model
from export.language.inference import WEIGHTS, Precision, write_inference

SMALL = {"vocabulary": 61, "hidden": 24, "layers": 3, "heads": 4, "kv_heads": 2, "head_size": 8, "feed_forward": 40}


def architectures() -> dict[str, Architecture]:
    found = {
        name: msgspec.structs.replace(shape, **SMALL, context=40, windows=())
        for name, shape in PUBLIC.items()
        if name != "gpt2"
    }
    found["gpt2"] = msgspec.structs.replace(PUBLIC["gpt2"], **{**SMALL, "kv_heads": 4, "head_size": 6}, context=40)
    found["gemma-3-270m"] = msgspec.structs.replace(found["gemma-3-270m"], windows=(5, 0, 5))
    found["untied"] = msgspec.structs.replace(found["smollm-135m"], tied=False)
    return found


def random_model(shape: Architecture) -> CausalModel:
    torch.manual_seed(0)
    module = CausalModel(shape, "float32").eval()
    with torch.no_grad():
        for value in module.parameters():
            value.add_(0.2 * torch.randn_like(value))
    return module


@pytest.fixture(scope="module", autouse=True)
def _first_module_without_memory() -> None:
    """Takes the second that torch needs for its first one."""
    meta_model(architectures()["gpt2"])


@pytest.mark.parametrize("precision", ["float32", "int8"])
@pytest.mark.parametrize("name", architectures())
def test_every_symbol_has_the_logits_of_torch(name: str, precision: Precision, tmp_path: Path) -> None:
    module = random_model(architectures()[name])
    values = {key: value.detach().numpy().copy() for key, value in module.named_parameters()}
    write_inference(tmp_path, module.architecture, values.items(), precision)
    if precision == "int8":
        for key in matrices(module):
            rounded = dequantised(key, held(key, values[key], "int8"))
            module.get_parameter(key).data.copy_(torch.from_numpy(rounded))
    symbols = torch.randint(0, 61, (1, 24), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = module(symbols)[0].T.numpy()
    session = load(tmp_path / "model.onnx", "1.20", threads=1, weights=WEIGHTS)
    row = symbols[0].numpy()
    found = np.concatenate([session.logits(row[:9]), *(session.logits(row[i : i + 1]) for i in range(9, 24))])
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max())
    session.forget()
    np.testing.assert_allclose(session.logits(row), expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max())


def test_a_batch_runs_and_a_session_of_others_may_optimise(tmp_path: Path) -> None:
    module = random_model(architectures()["qwen2.5-0.5b"])
    values = ((key, value.detach().numpy()) for key, value in module.named_parameters())
    write_inference(tmp_path, module.architecture, values, "float32")
    session = ort.InferenceSession(str(tmp_path / "model.onnx"), providers=["CPUExecutionProvider"])
    symbols = torch.randint(0, 61, (3, 12), generator=torch.Generator().manual_seed(1))
    past = {v.name: np.zeros((3, 2, 0, 8), np.float32) for v in session.get_inputs()[1:]}
    with torch.no_grad():
        expected = module(symbols).transpose(1, 2).numpy()
    np.testing.assert_allclose(session.run(["logits"], {"input_ids": symbols.numpy(), **past})[0], expected, atol=2e-5)


def test_values_of_another_model_are_refused(tmp_path: Path) -> None:
    shape = architectures()["gpt2"]
    with pytest.raises(ValueError, match=r"'norm\.weight' \(3,\) is no tensor of the model"):
        write_inference(tmp_path, shape, [("norm.weight", np.ones(3, np.float32))], "float32")
    with pytest.raises(ValueError, match=r"no value of 'embedding\.weight' was given"):
        write_inference(tmp_path, shape, [], "float32")


def test_weights_in_another_file_are_refused(tmp_path: Path) -> None:
    module = random_model(architectures()["gpt2"])
    values = ((key, value.detach().numpy()) for key, value in module.named_parameters())
    write_inference(tmp_path, module.architecture, values, "float32")
    with pytest.raises(DeviceRefused, match="it takes values from another file"):
        load(tmp_path / "model.onnx", "1.20", threads=1, weights="other.data")
