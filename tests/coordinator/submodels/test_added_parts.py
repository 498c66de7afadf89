"""Trained parts beside frozen ones: what they compute, what they leave as it is, how they begin, how many they are."""

from __future__ import annotations

import copy
import math
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from coordinator.cli.model_arguments import parse_cut
from coordinator.models.catalog import build_model, input_spec
from coordinator.models.vit import Attention, Block
from coordinator.submodels.additions import draw_additions
from coordinator.submodels.build import apply_cut, module_tensors
from coordinator.submodels.differences import random_mask
from coordinator.submodels.frozen_base import transformer_blocks
from coordinator.submodels.record import Added, LayerCut, cut_digest, cut_from_json, cut_to_json
from edge.contracts.errors import ConfigError, PlanError
from export.bundle import export_artifact
from export.training_step import Optimizer, StepSpec

WIDTH, HEADS, CLASSES = 16, 2, 5
TINY = {"input_shape": (3, 8, 8), "width": WIDTH, "depth": 2, "heads": HEADS}


def transformer() -> nn.Module:
    return build_model("vit", classes=CLASSES, seed=3, **TINY)


def with_added(module: nn.Module, **added: Added) -> nn.Module:
    """``module`` in float64 with additions, paths written with ``__`` for dots, at values that have an effect."""
    built = apply_cut(module, {path.replace("__", "."): LayerCut(added=a) for path, a in added.items()}).double()
    torch.manual_seed(1)
    with torch.no_grad():
        for name, parameter in built.named_parameters():
            if name not in dict(module.named_parameters()):
                parameter.normal_(std=0.5)
    return built


def tokens(count: int = 3) -> Tensor:
    return torch.randn(2, count, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize("cut", ["adapter:4", "adapter:4,per-block=2", "slora:3", "slora:3,stage-one-rounds=0"])
def test_model_computes_as_before_until_its_additions_are_trained(cut: str) -> None:
    module, x = transformer(), torch.randn(4, 3, 8, 8)
    built = apply_cut(module, parse_cut(module, cut)[0])
    draw_additions(built, 8)
    assert torch.equal(built(x), module(x))


@pytest.mark.parametrize("cut", ["prefix:3", "prompt:3", "prompt:3,depth=shallow"])
def test_prefixes_and_prompts_change_the_model_from_the_start(cut: str) -> None:
    # Their keys share the softmax, so there is no first value without effect.
    module, x = transformer(), torch.randn(4, 3, 8, 8)
    assert (apply_cut(module, parse_cut(module, cut)[0])(x) - module(x)).abs().max() > 1e-3


@pytest.mark.parametrize("cut", ["adapter:4,per-block=2", "prefix:3", "prompt:3", "prompt:3,depth=shallow", "slora:3"])
def test_base_keeps_names_values_and_is_frozen(cut: str) -> None:
    module = transformer()
    record, program = parse_cut(module, cut)
    built = apply_cut(module, record)
    before, after = module_tensors(module), module_tensors(built)
    assert all(np.array_equal(after[name], value) for name, value in before.items())
    trained = {name for name, parameter in built.named_parameters() if parameter.requires_grad}
    assert trained == {*after} - {*before} | {"head.weight", "head.bias"}
    assert {*program.frozen} == {*before} - {"head.weight", "head.bias"}
    assert all(p.requires_grad for p in module.parameters())


def test_adapter_is_a_bottleneck_with_its_own_residual() -> None:
    module = transformer().double()
    part = with_added(module, blocks__0__fc2=Added("adapter", size=4)).blocks[0].fc2
    x = torch.randn(7, 4 * WIDTH, dtype=torch.float64)
    h = x @ module.blocks[0].fc2.weight.T + module.blocks[0].fc2.bias
    inner = torch.clamp(h @ part.down.weight.T + part.down.bias, min=0)
    assert (part(x) - (h + inner @ part.up.weight.T + part.up.bias)).abs().max() < 1e-12


def test_prefix_is_what_torchs_attention_gives_for_longer_keys_and_values() -> None:
    module = transformer().double()
    part = with_added(module, blocks__1__attention=Added("prefix", size=3, length=4)).blocks[1].attention
    x = tokens()
    inner = torch.tanh(part.tokens @ part.hidden.weight.T + part.hidden.bias)
    keys, values = (inner @ part.keys_values.weight.T + part.keys_values.bias).split(WIDTH, 1)
    q, k, v = module.blocks[1].attention.qkv(x).split(WIDTH, 2)
    k, v = (torch.cat([own.expand(2, -1, -1), old], 1) for own, old in ((keys, k), (values, v)))
    q, k, v = (t.unflatten(2, (HEADS, -1)).transpose(1, 2) for t in (q, k, v))
    expected = module.blocks[1].attention.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
    assert (part(x) - expected).abs().max() < 1e-12


def test_deep_prompt_is_new_in_every_block() -> None:
    module = transformer().double()
    built = with_added(module, blocks__0=Added("prompt", length=2), blocks__1=Added("prompt", length=2))
    x = expected = tokens()
    for old, new in zip(module.blocks, built.blocks, strict=True):
        expected = old(torch.cat([new.prompts.tokens.expand(2, -1, -1), expected], 1))[:, 2:]
    assert (built.blocks(x) - expected).abs().max() < 1e-12


def test_shallow_prompt_goes_through_all_blocks() -> None:
    module = transformer().double()
    built = with_added(module, blocks=Added("prompt", length=2))
    x = tokens()
    expected = module.blocks(torch.cat([built.blocks[0].prompts.tokens.expand(2, -1, -1), x], 1))[:, 2:]
    assert (built.blocks(x) - expected).abs().max() < 1e-12
    assert [n for n, _ in built.named_parameters() if "prompts" in n] == ["blocks.0.prompts.tokens"]


def test_copy_of_a_prompted_module_reads_its_own_tokens() -> None:
    built = with_added(transformer(), blocks=Added("prompt", length=2))
    x, copied = tokens(), copy.deepcopy(built)
    before = built.blocks(x)
    with torch.no_grad():
        copied.blocks[0].prompts.tokens.zero_()
    assert torch.equal(built.blocks(x), before)
    assert not torch.equal(copied.blocks(x), before)


def test_difference_is_added_to_the_weight() -> None:
    module = transformer().double()
    part = with_added(module, blocks__0__attention__qkv=Added("difference")).blocks[0].attention.qkv
    x = tokens()
    weight = module.blocks[0].attention.qkv.weight + part.difference
    assert (part(x) - (x @ weight.T + part.bias)).abs().max() < 1e-12


def test_random_mask_keeps_its_share_and_is_drawn_anew_by_seed() -> None:
    mask = random_mask(4, (40, 50), 0.1)
    assert mask.sum() == 200
    assert abs(mask.mean(1) - 0.1).max() < 0.25  # spread over all rows
    assert not np.array_equal(mask, random_mask(5, (40, 50), 0.1))
    assert random_mask(4, (3, 3), 0.001).sum() == 1


def test_first_values_depend_on_the_seed_and_the_path_alone() -> None:
    cut = {f"blocks.{i}.attention": LayerCut(added=Added("prefix", size=3, length=4)) for i in (0, 1)}
    one, other = apply_cut(transformer(), cut), apply_cut(build_model("vit", classes=2, seed=9, **TINY), cut)
    for built in (one, other):
        draw_additions(built, 5)
    first, second = (built.blocks[0].attention for built in (one, other))
    assert torch.equal(first.tokens, second.tokens)
    assert torch.equal(first.keys_values.weight, second.keys_values.weight)
    assert not torch.equal(first.tokens, one.blocks[1].attention.tokens)
    draw_additions(other, 6)
    assert not torch.equal(first.tokens, second.tokens)


def test_building_leaves_torchs_random_state_alone() -> None:
    module = transformer()
    state = torch.random.get_rng_state()
    for cut in ("adapter:4", "prefix:3", "prompt:3", "slora:3"):
        apply_cut(module, parse_cut(module, cut)[0])
    assert torch.equal(torch.random.get_rng_state(), state)


# On ViT-Small (W = 384, 12 blocks), the classifier's 3,850 not counted. Adapters and deep prompts are those of
# "0.078, 0.152, 0.300, 0.595 M" and "0.074, 0.147, 0.295, 0.590 M"; FedLoRA's rank r has 27,648 r.
COUNTS = [(f"adapter:{m}", 12 * (m * (2 * 384 + 1) + 384)) for m in (8, 16, 32, 64)]
COUNTS += [(f"prompt:{t}", 12 * t * 384) for t in (16, 32, 64, 128)]
COUNTS += [(f"prefix:{h},length=10", 12 * (10 * 384 + h * (3 * 384 + 1) + 2 * 384)) for h in (4, 8, 16, 32)]
COUNTS += [("adapter:8,per-block=2", 2 * 78_432), ("prompt:16,depth=shallow", 16 * 384)]
COUNTS += [(f"slora:{r},stage-one-rounds=0", 27_648 * r) for r in (2, 4, 8, 16)]
COUNTS += [("slora:8", 12 * 384 * (1152 + 384))]


@pytest.mark.parametrize(("cut", "count"), COUNTS, ids=[cut for cut, _ in COUNTS])
def test_trained_elements_on_the_published_transformer(cut: str, count: int) -> None:
    module = build_model("vit_small").to("meta")
    built = apply_cut(module, parse_cut(module, cut)[0])
    assert sum(p.numel() for p in built.parameters() if p.requires_grad) == count + 3_850


@pytest.mark.parametrize(
    ("form", "sizes", "printed"),
    [
        ("adapter", (8, 16, 32, 64), (0.078, 0.152, 0.300, 0.595)),
        ("prompt", (16, 32, 64, 128), (0.074, 0.147, 0.295, 0.590)),
    ],
)
def test_counts_round_to_the_figures_of_the_standard_definitions(
    form: str, sizes: tuple[int, ...], printed: tuple[float, ...]
) -> None:
    counts = dict(COUNTS)
    assert tuple(round(counts[f"{form}:{size}"] / 1e6, 3) for size in sizes) == printed


@pytest.mark.parametrize("step", range(4))
def test_weights_alone_coincide_with_the_published_sizes(step: int) -> None:
    # FedHM's journal says that sizes equal FedLoRA's (27,648 r). The weight matrices do in these readings, of which
    # the paper says nothing: prefixes without tokens and biases, adapters without biases and prompts in 9 of 12 blocks.
    published = 27_648 * 2 * 2**step
    module = build_model("vit_small").to("meta")
    nine = "layout=blocks.[0-8]"
    for cut, pattern in (
        (f"prefix:{4 * 2**step}", "weight"),
        (f"adapter:{8 * 2**step},{nine}.fc2", "weight"),
        (f"prompt:{16 * 2**step},{nine}", "tokens"),
    ):
        built = apply_cut(module, parse_cut(module, cut)[0])
        trained = {n: p for n, p in built.named_parameters() if p.requires_grad and not n.startswith("head.")}
        assert sum(p.numel() for n, p in trained.items() if n.endswith(pattern)) == published


@pytest.mark.parametrize("cut", ["adapter:4,per-block=2", "prefix:3,length=7", "prompt:3,depth=shallow", "slora:3"])
def test_cut_survives_the_ledger_and_a_manifest(cut: str) -> None:
    module = transformer()
    record, _ = parse_cut(module, cut)
    stored = cut_from_json(msgspec.json.decode(msgspec.json.encode(cut_to_json(record))))
    assert stored == record
    assert cut_digest(stored) == cut_digest(record)
    built, again = apply_cut(module, record), apply_cut(module, stored)
    assert {n: v.shape for n, v in built.state_dict().items()} == {n: v.shape for n, v in again.state_dict().items()}


def test_another_size_has_another_digest() -> None:
    digests = {
        cut_digest({"a": LayerCut(added=Added("prefix", size=s, length=n))}) for s, n in ((4, 5), (5, 5), (4, 6))
    }
    assert len(digests) == 3


@pytest.mark.parametrize(
    ("path", "added", "words"),
    [
        ("embed", Added("adapter", size=4), r"'embed': no adapter behind a Conv2d"),
        ("embed", Added("difference"), r"'embed': no difference to a Conv2d"),
        ("head", Added("prefix", size=4, length=2), r"'head': a prefix needs .*Attention, it is of type Linear"),
        ("head", Added("prompt", length=2), r"'head': a prompt needs transformer blocks, it is of type Linear"),
        ("blocks.0.attention", Added("prompt", length=2), "it is of type Attention"),
        ("blocks.0.fc2", Added("adapter"), "adds nothing"),
        ("blocks.0.attention", Added("prefix", size=4), "adds nothing"),
        ("blocks.0", Added("prompt"), "adds nothing"),
    ],
)
def test_part_that_takes_no_such_addition_is_refused(path: str, added: Added, words: str) -> None:
    with pytest.raises(PlanError, match=words):
        apply_cut(transformer(), {path: LayerCut(added=added)})


def test_blocks_are_found_by_type_and_pattern_or_what_is_needed_is_said() -> None:
    module = transformer()
    assert transformer_blocks(module, "prompt") == ("blocks.0", "blocks.1")
    assert transformer_blocks(module, "prompt", ("*.1",)) == ("blocks.1",)
    with pytest.raises(ConfigError, match=r"layers\.\*.*there are: blocks\.0, blocks\.1"):
        transformer_blocks(module, "prompt", ("layers.*",))
    with pytest.raises(PlanError, match=r"prompt needs a module with transformer blocks.*ResNet"):
        transformer_blocks(build_model("resnet8"), "prompt")


def test_own_module_with_these_blocks_takes_every_addition() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers, self.out = nn.ModuleList([Block(8, 2), Block(8, 2)]), nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = layer(x)
            return self.out(x.mean(1))

    for cut in ("adapter:2", "prefix:2", "prompt:2"):
        module = Own()
        assert apply_cut(module, parse_cut(module, cut)[0])(torch.randn(2, 4, 8)).shape == (2, 3)
    assert isinstance(Own().layers[0].attention, Attention)


@pytest.mark.slow
@pytest.mark.runtime
@pytest.mark.parametrize(
    ("cut", "optimizer"),
    [
        ("adapter:4,per-block=2", "adam"),
        ("prefix:3", "sgd"),
        ("prompt:3", "adam"),
        ("prompt:3,depth=shallow", "sgd"),
        ("slora:3", "adam"),
    ],
)
def test_step_passes_the_gate_and_trains_the_additions_alone(cut: str, optimizer: str, tmp_path: Path) -> None:
    module = transformer()
    record, program = parse_cut(module, cut)
    built = apply_cut(module, record)
    spec = StepSpec(
        input=input_spec("vit", input_shape=(3, 8, 8)),
        classes=CLASSES,
        batch=4,
        frozen=program.frozen,
        masked=program.masked,
        optimizer=Optimizer(kind=optimizer),  # type: ignore[arg-type]
    )
    manifest = export_artifact(built, spec, tmp_path / "artifact")
    trained = {t.name for t in manifest.tensors if t.role == "parameter"}
    assert trained == {n for n, p in built.named_parameters() if p.requires_grad}
    assert manifest.parity.max_grad_rel_err <= manifest.parity.tolerance < math.inf
