"""Prefixes and prompts as ``peft`` reads them: the logits are those of a device's own definition of their places."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from coordinator.language.configuration import read_architecture
from coordinator.language.folder import tensors
from coordinator.language.peft_virtual import addition_kind, write_virtual
from coordinator.methods import build_method
from coordinator.submodels.build import apply_cut
from coordinator.submodels.record import Cut
from edge.contracts.errors import PlanError
from export.language.causal_model import CausalModel, meta_model
from export.language.held_base import with_base
from tests.coordinator.language.public_models import NAMES, PublicModels, symbols

LENGTH = 4


def trained(module: CausalModel, kind: str, **options: Any) -> tuple[Cut, dict[str, np.ndarray]]:
    """The cut of a method of virtual positions, and values that are nothing like its first ones."""
    method = build_method(kind, module, {"levels": [LENGTH], **options})
    model, draw = method.eval_models(method.init())["server"], np.random.default_rng(0)
    return model.cut, {n: draw.normal(0, 0.7, v.shape).astype(np.float32) for n, v in model.tensors.items()}


# Of peft with a newer transformers, about names of the latter.
@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")
@pytest.mark.filterwarnings("ignore:.past_key_values. is deprecated:FutureWarning")
@pytest.mark.parametrize("kind", ["prefix", "prompt"])
@pytest.mark.parametrize("name", NAMES)
def test_peft_has_the_logits_of_the_module(
    name: str, kind: str, public: PublicModels, peft: Any, tmp_path: Path
) -> None:
    (tmp_path / "base").mkdir()
    (tmp_path / "written").mkdir()
    public.saved(name, tmp_path / "base")
    shape = read_architecture(tmp_path / "base")
    cut, values = trained(meta_model(shape), kind)
    assert addition_kind(values) == kind
    write_virtual(tmp_path / "written", shape, values, base=str(tmp_path / "base"))
    base = with_base(meta_model(shape, "float32"), tensors(tmp_path / "base"))
    ours = apply_cut(base, cut, values).eval()
    theirs = peft.PeftModel.from_pretrained(public.loaded(tmp_path / "base"), str(tmp_path / "written")).eval()
    with torch.no_grad():
        expected = ours(symbols()).transpose(1, 2)
        found = theirs(symbols()).logits[:, -expected.shape[1] :]
        plain = base(symbols()).transpose(1, 2)
    assert (expected - plain).abs().max() > 0.05
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_a_prefix_of_some_blocks_is_refused(public: PublicModels, tmp_path: Path) -> None:
    public.saved("llama", tmp_path)
    shape = read_architecture(tmp_path)
    _, values = trained(meta_model(shape), "prefix", depths=[2])
    with pytest.raises(PlanError, match=r"'blocks\.0\.attention\.prefix\.keys' was not trained.*depths = \[3\]"):
        write_virtual(tmp_path, shape, values, base="base")
