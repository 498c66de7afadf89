"""Folders of public models: the same logits here as in their own classes, and what is refused by its key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from coordinator.language.configuration import architecture_of, configuration_of, read_architecture
from coordinator.language.folder import source_tensors, tensors, write_folder
from edge.contracts.errors import ConfigError
from export.language.architecture import PUBLIC
from export.language.causal_model import CausalModel
from tests.coordinator.language.public_models import NAMES, PublicModels, symbols


def module_of(folder: Path) -> CausalModel:
    module = CausalModel(read_architecture(folder), "float32")
    module.load_state_dict({name: torch.from_numpy(np.array(value)) for name, value in tensors(folder)})
    return module.eval()


def logits(model: Any, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return model(x).logits  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", NAMES)
def test_logits_are_those_of_the_public_class(public: PublicModels, name: str, tmp_path: Path) -> None:
    model = public.saved(name, tmp_path)
    x = symbols()
    with torch.no_grad():
        found = module_of(tmp_path)(x).transpose(1, 2)
    torch.testing.assert_close(found, logits(model, x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_written_folder_loads_in_the_public_class(public: PublicModels, name: str, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    model = public.saved(name, tmp_path / "a")
    write_folder(tmp_path / "b", read_architecture(tmp_path / "a"), tensors(tmp_path / "a"), origin=tmp_path / "a")
    again = public.loaded(tmp_path / "b")
    assert type(again) is type(model)
    assert again.config.eos_token_id == model.config.eos_token_id
    torch.testing.assert_close(logits(again, symbols()), logits(model, symbols()), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_read_exactly(public: PublicModels, dtype: torch.dtype, tmp_path: Path) -> None:
    model = public.model("gpt2").to(dtype)
    model.save_pretrained(tmp_path)
    found = dict(tensors(tmp_path))["blocks.1.feed_forward.up.weight"]
    expected = model.transformer.h[1].mlp.c_fc.weight.detach().float().T.numpy()
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, expected)


def test_shards_and_a_folder_without_prefix(public: PublicModels, tmp_path: Path) -> None:
    whole, parts, bare = tmp_path / "whole", tmp_path / "parts", tmp_path / "bare"
    public.saved("qwen2", whole)
    public.saved("qwen2", parts, max_shard_size="20KB")
    assert not (parts / "model.safetensors").exists()
    public.model("qwen2").model.save_pretrained(bare)
    expected = dict(tensors(whole))
    for folder in (parts, bare):
        found = dict(tensors(folder, read_architecture(whole)))
        assert found.keys() == expected.keys()
        assert all((found[name] == expected[name]).all() for name in expected)


def test_names_go_back(public: PublicModels, tmp_path: Path) -> None:
    model = public.saved("gpt2", tmp_path)
    found = dict(source_tensors(read_architecture(tmp_path), tensors(tmp_path)))
    state = model.state_dict()
    assert found.keys() == state.keys() - {"lm_head.weight"}
    assert all((state[name].numpy() == value).all() for name, value in found.items())


def test_public_shapes_are_what_their_files_say() -> None:
    for name, architecture in PUBLIC.items():
        assert architecture_of(configuration_of(architecture), where=name).linears(0) == architecture.linears(0)


@pytest.mark.parametrize(
    ("name", "changes", "named"),
    [
        ("gpt2", {"model_type": "opt"}, "model_type is 'opt'; known: gpt2, llama, qwen2, gemma3_text"),
        ("gpt2", {"activation_function": "relu"}, "activation_function is 'relu'"),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx is True"),
        ("llama", {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}, "rope_parameters": None}, "(llama3)"),
        ("llama", {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, "scaled rotations (yarn)"),
        ("llama", {"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ("llama", {"num_attention_heads": "four"}, "num_attention_heads is 'four'"),
        ("llama", {"num_key_value_heads": 3}, "4 heads cannot share 3 key heads"),
        ("llama", {"quantization_config": {"quant_method": "gptq"}}, "quantization_config"),
        ("qwen2", {"layer_types": ["linear_attention"] * 3}, "layer_types is ['linear_attention'"),
        ("gemma3", {"final_logit_softcapping": 30.0}, "final_logit_softcapping is 30.0"),
        ("gemma3", {"model_type": "gemma3"}, "give the text model alone"),
    ],
)
def test_what_no_step_computes_is_refused_by_its_key(
    public: PublicModels, name: str, changes: dict[str, Any], named: str
) -> None:
    values = {**public.configuration(name).to_dict(), **changes}
    with pytest.raises(ConfigError) as caught:
        architecture_of(values, where="config.json")
    assert named in str(caught.value)


def test_rotations_of_older_files_are_read(public: PublicModels) -> None:
    old = {
        **public.configuration("gemma3").to_dict(),
        "rope_theta": 3e5,
        "rope_local_base_freq": 2e4,
        "rope_scaling": None,
    }
    del old["rope_parameters"]
    found = architecture_of(old, where="config.json")
    assert (found.rotary_theta, found.local_rotary_theta, found.windows) == (3e5, 2e4, (7, 7, 0))


def test_bad_folders_say_what_to_do(public: PublicModels, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no model there"):
        read_architecture(tmp_path)
    public.saved("llama", tmp_path)
    weights = tmp_path / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ConfigError, match="is no readable safetensors file"):
        next(tensors(tmp_path))
    weights.write_bytes(whole)
    values = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**values, "mlp_bias": True, "vocab_size": 98}))
    with pytest.raises(ConfigError, match=r"no tensor 'model\.layers\.0\.mlp\.gate_proj\.bias'") as caught:
        next(tensors(tmp_path))
    assert "has shape (97, 24), its config.json says (98, 24)" in str(caught.value)
    (tmp_path / "config.json").write_text(json.dumps({**values, "num_hidden_layers": 2}))
    with pytest.raises(ConfigError, match="9 tensors that a llama model has no place for"):
        next(tensors(tmp_path))
    weights.rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(ConfigError, match=r"pytorch_model\.bin is pickled: never read"):
        next(tensors(tmp_path))
