"""Factors merged into the base, as an adapter and as GGUF: the same logits in the packages that read them."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from coordinator.language.configuration import configuration_of, read_architecture
from coordinator.language.folder import tensor_shapes, tensors, write_folder
from coordinator.language.gguf_file import gguf_name, word_rule, write_gguf
from coordinator.language.merge import Factors, base_values, factors_of, merged
from coordinator.language.peft_adapter import write_adapter
from edge.contracts.errors import ConfigError, PlanError
from export.language.architecture import Architecture
from export.language.causal_model import meta_model
from export.language.held_base import with_base
from tests.coordinator.language.public_models import NAMES, PublicModels, symbols
from tests.edge.language.tiny_tokenizer import write_tokenizer


def random_state(shape: Architecture) -> dict[str, np.ndarray]:
    """Factors of several ranks beside the projections of the upper blocks."""
    draw, found = np.random.default_rng(0), {}
    for block in range(1, shape.layers):
        for number, (path, (outputs, inputs)) in enumerate(shape.linears(block).items()):
            rank = 2 + (number == 0) + 2 * (block == 2)
            found[f"{path}.u"] = draw.normal(0, 0.2, (outputs, rank)).astype(np.float32)
            found[f"{path}.v"] = draw.normal(0, 0.2, (rank, inputs)).astype(np.float32)
    return found


def computed(shape: Architecture, values: Any) -> torch.Tensor:
    module = with_base(meta_model(shape, "float32"), values).eval()
    with torch.no_grad():
        return module(symbols()).transpose(1, 2)


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(symbols()).logits


def factored(shape: Architecture, values: Any, factors: Factors) -> torch.Tensor:
    """Logits of the base with its factors beside it, as a device computes them, by hooks."""
    module = with_base(meta_model(shape, "float32"), values).eval()
    for path, (u, v) in factors.items():
        parts = torch.from_numpy(u), torch.from_numpy(v)
        module.get_submodule(path).register_forward_hook(
            lambda layer, args, out, parts=parts: out + args[0] @ parts[1].T @ parts[0].T
        )
    with torch.no_grad():
        return module(symbols()).transpose(1, 2)


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """An empty folder."""
    (tmp_path / "base").mkdir()
    return tmp_path / "base"


@pytest.mark.parametrize("name", NAMES)
def test_merged_folder_has_the_logits_of_base_and_factors(
    name: str, public: PublicModels, base: Path, tmp_path: Path
) -> None:
    whole = tmp_path / "whole"
    whole.mkdir()
    public.saved(name, base)
    shape = read_architecture(base)
    factors = factors_of(random_state(shape), shape)
    expected = factored(shape, tensors(base), factors)
    assert (expected - computed(shape, tensors(base))).abs().max() > 0.1
    write_folder(whole, shape, merged(tensors(base), factors), origin=base)
    torch.testing.assert_close(logits(public.loaded(whole)), expected, rtol=1e-4, atol=1e-4)


# Of peft with a newer transformers, about a name of the latter.
@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")
@pytest.mark.parametrize("name", NAMES)
def test_adapter_has_the_logits_of_base_and_factors(
    name: str, public: PublicModels, peft: Any, base: Path, tmp_path: Path
) -> None:
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    public.saved(name, base)
    shape = read_architecture(base)
    factors = factors_of(random_state(shape), shape)
    write_adapter(adapter, shape, factors, base=str(base))
    model = peft.PeftModel.from_pretrained(public.loaded(base), str(adapter)).eval()
    torch.testing.assert_close(logits(model), factored(shape, tensors(base), factors), rtol=1e-4, atol=1e-4)


def test_base_is_what_devices_compute_with(public: PublicModels, tmp_path: Path) -> None:
    public.saved("qwen2", tmp_path)
    shape = read_architecture(tmp_path)
    exact, rounded = dict(tensors(tmp_path)), dict(base_values(tensors(tmp_path), shape, "int8"))
    weight = exact["blocks.0.attention.query.weight"]
    step = np.abs(weight).max(1, keepdims=True) / 127
    error = np.abs(rounded["blocks.0.attention.query.weight"] - weight)
    assert error.max() > 0
    assert (error <= 0.501 * step).all()
    assert (rounded["blocks.0.attention.query.bias"] == exact["blocks.0.attention.query.bias"]).all()


@pytest.mark.parametrize("name", ["gpt2", "llama", "llama_untied", "qwen2", "gemma3"])
def test_gguf_has_the_logits_of_the_model(name: str, public: PublicModels, tmp_path: Path) -> None:
    pytest.importorskip("gguf", reason="gguf is not installed: pip install 'apportion[gguf]'")
    public.saved(name, tmp_path)
    shape = readable(read_architecture(tmp_path))
    path = tmp_path / "model.gguf"
    reason = write_gguf(path, shape, tensors(tmp_path, shape), precision="float32", title="tiny")
    assert reason == "no tokenizer.json was given"
    # Of some families that reader takes tensors alone from the file.
    (tmp_path / "config.json").write_text(json.dumps(configuration_of(shape)))
    configuration = public.library.AutoConfig.from_pretrained(tmp_path)
    found = logits(public.loaded(tmp_path, gguf_file="model.gguf", config=configuration))
    torch.testing.assert_close(found, computed(shape, tensors(tmp_path, shape)), rtol=1e-4, atol=1e-4)


def test_gguf_of_int8_and_its_tokenizer_are_read_back(public: PublicModels, tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf", reason="gguf is not installed: pip install 'apportion[gguf]'")
    public.saved("llama_untied", tmp_path)
    shape = msgspec.structs.replace(read_architecture(tmp_path), vocabulary=300, hidden=32, tied=False)
    draw = np.random.default_rng(0)
    values = {name: draw.normal(0, 1, size).astype(np.float32) for name, size in tensor_shapes(shape).items()}
    tokenizer = write_tokenizer(tmp_path / "tiny.json", vocabulary=280)
    path = tmp_path / "model.gguf"
    assert write_gguf(path, shape, values.items(), precision="int8", title="tiny", tokenizer=tokenizer) == ""
    reader = gguf.GGUFReader(path)
    found = {entry.name: entry for entry in reader.tensors}
    assert found.keys() == {gguf_name(name) for name in values}
    head = found["output.weight"]
    rounded = gguf.dequantize(head.data, head.tensor_type)
    assert 0 < np.abs(rounded - values["head.weight"]).max() <= 0.502 * np.abs(values["head.weight"]).max() / 127
    assert (found["output_norm.weight"].data == values["norm.weight"]).all()
    fields = reader.fields
    assert fields["tokenizer.ggml.tokens"].contents(0) == "<|endoftext|>"
    assert fields["tokenizer.ggml.tokens"].contents(299) == "[PAD299]"
    assert fields["tokenizer.ggml.eos_token_id"].contents() == 0
    assert fields["llama.attention.head_count_kv"].contents() == 2


def readable(shape: Architecture) -> Architecture:
    """The same with what readers of a GGUF file take for granted."""
    if shape.family != "gemma3":
        return shape
    return msgspec.structs.replace(shape, attention_scale=shape.head_size**-0.5, windows=(7,) * shape.layers)


def test_gguf_has_names_for_how_public_tokenizers_cut_words(public: PublicModels) -> None:
    words = importlib.import_module("transformers.models.qwen2.tokenization_qwen2").PRETOKENIZE_REGEX
    plain = {"type": "ByteLevel", "use_regex": True}
    qwen = [{"type": "Split", "pattern": {"Regex": words}}, {"type": "ByteLevel", "use_regex": False}]
    small = [{"type": "Digits", "individual_digits": True}, plain]
    assert word_rule(plain) == "gpt-2"
    assert word_rule({"type": "Sequence", "pretokenizers": small}) == "smollm"
    assert word_rule({"type": "Sequence", "pretokenizers": qwen}) == "qwen2"
    assert word_rule({"type": "Metaspace"}) == word_rule(None) == ""


def test_gguf_refuses_what_its_readers_would_compute_otherwise(public: PublicModels, tmp_path: Path) -> None:
    pytest.importorskip("gguf", reason="gguf is not installed: pip install 'apportion[gguf]'")
    public.saved("gemma3", tmp_path)
    shape = read_architecture(tmp_path)
    with pytest.raises(ConfigError, match=r"scores are scaled by 0\.25, readers take 0\.353553; windows \(7, 7, 0\)"):
        write_gguf(tmp_path / "x.gguf", shape, [], precision="float32", title="tiny")


def test_a_state_of_another_model_is_refused(public: PublicModels, tmp_path: Path) -> None:
    public.saved("gpt2", tmp_path)
    shape = read_architecture(tmp_path)
    state = random_state(shape)
    u = state["blocks.1.attention.qkv.u"]
    with pytest.raises(PlanError, match=r"factors u \(72, 3\) and v None, \[72, rank\] and \[rank, 24\] expected"):
        factors_of({"blocks.1.attention.qkv.u": u}, shape)
    with pytest.raises(PlanError, match=r"u \(71, 3\)"):
        factors_of({**state, "blocks.1.attention.qkv.u": u[1:]}, shape)
    with pytest.raises(PlanError, match=r"'blocks\.7\.attention\.qkv\.u' is no factor of a gpt2 model"):
        factors_of({"blocks.7.attention.qkv.u": u}, shape)
    with pytest.raises(PlanError, match="has trained no factors"):
        write_adapter(tmp_path, shape, {}, base="x")


def test_an_adapter_says_the_ranks_of_layers_that_have_others(public: PublicModels, tmp_path: Path) -> None:
    (tmp_path / "adapter").mkdir()
    public.saved("llama", tmp_path)
    shape = read_architecture(tmp_path)
    write_adapter(tmp_path / "adapter", shape, factors_of(random_state(shape), shape), base="x")
    found = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert found["r"] == found["lora_alpha"]
    assert len(found["target_modules"]) == 14
    assert set(found["rank_pattern"].values()) | {found["r"]} == {2, 3, 4, 5}
