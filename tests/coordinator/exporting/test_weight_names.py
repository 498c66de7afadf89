"""Files in the names of other packages: patterns, what they may not do, and the maps that are there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from torch import nn

from coordinator.config.canonical import canonical_toml
from coordinator.exporting.initial_weights import load_initial_weights
from coordinator.exporting.weight_names import fitting_maps, named_map, renamed
from coordinator.models.catalog import build_model
from coordinator.run_file.loading import load_config_text
from edge.contracts.errors import ConfigError
from tests.coordinator.exporting.test_initial_weights import RUN, net, written

# timm's vit_small_patch16_224 and torchvision's mobilenet_v3_small: names as those packages have them.
TIMM = {
    "cls_token": "token",
    "pos_embed": "position",
    "patch_embed.proj.weight": "embed.weight",
    "blocks.11.norm1.bias": "blocks.11.norm1.bias",
    "blocks.11.attn.qkv.weight": "blocks.11.attention.qkv.weight",
    "blocks.0.attn.proj.bias": "blocks.0.attention.proj.bias",
    "blocks.0.mlp.fc2.weight": "blocks.0.fc2.weight",
    "norm.weight": "norm.weight",
    "head.bias": "head.bias",
}
TORCHVISION = {
    "features.0.1.running_mean": "stem.1.running_mean",
    "features.1.block.0.0.weight": "blocks.0.depthwise.0.weight",
    "features.1.block.1.fc2.bias": "blocks.0.excite.fc2.bias",
    "features.1.block.2.1.weight": "blocks.0.project.1.weight",
    "features.2.block.0.0.weight": "blocks.1.expand.0.weight",
    "features.2.block.2.0.weight": "blocks.1.project.0.weight",
    "features.11.block.3.1.bias": "blocks.10.project.1.bias",
    "features.12.0.weight": "last.0.weight",
    "classifier.0.weight": "hidden.weight",
    "classifier.3.bias": "fc.bias",
}


def test_stars_stand_for_what_they_matched_and_the_longest_pattern_counts() -> None:
    patterns = {"layers.*.conv.*": "blocks.*.*", "layers.*": "rest.*", "layers.1.conv.bias": "", "gamma": "weight"}
    names = ["layers.0.conv.weight", "layers.1.conv.bias", "layers.2.norm.bias", "gamma", "kept"]
    assert renamed(names, patterns) == {
        "layers.0.conv.weight": "blocks.0.weight",
        "layers.2.norm.bias": "rest.2.norm.bias",
        "gamma": "weight",
        "kept": "kept",
    }


def test_two_names_that_become_one_are_told() -> None:
    with pytest.raises(ConfigError, match="'a' and 'b' both become 'c'"):
        renamed(["a", "b"], {"a": "c", "b": "c"})


def test_a_pattern_without_a_name_is_told_with_names_that_are_near() -> None:
    with pytest.raises(ConfigError, match=r"'encodr\.\*' matches no name of the file .* it has encoder\.weight"):
        renamed(["encoder.weight", "fc.bias"], {"encodr.*": "body.*", "fc.*": "head.*"})


@pytest.mark.parametrize(
    ("name", "build", "shape", "expected"),
    [
        ("timm", "vit_small", (3, 32, 32), TIMM),
        ("torchvision", "mobilenet_v3_small", (3, 32, 32), TORCHVISION),
    ],
)
def test_maps_of_other_packages_name_the_tensors_of_the_module(
    name: str, build: str, shape: tuple[int, ...], expected: dict[str, str]
) -> None:
    module = build_model(build, input_shape=shape, classes=10)
    found = renamed(expected, named_map(name, module, build), whole=False)
    assert found == expected
    assert found.keys() - found.values()
    assert set(found.values()) <= module.state_dict().keys()
    assert fitting_maps(expected, module.state_dict(), module, build) == [name]


class Network(nn.Module):
    base_model_prefix = "bert"

    def __init__(self) -> None:
        super().__init__()
        self.bert = nn.Linear(2, 3)
        self.classifier = nn.Linear(3, 2)


class Wrapped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.network = Network()


def test_files_of_transformers_name_the_network_or_its_body() -> None:
    module, build = Wrapped(), "transformers:bert"
    whole, body = ["bert.weight", "classifier.weight"], ["weight", "bias"]
    maps = {name: named_map(name, module, build) for name in ("transformers", "transformers-base")}
    assert renamed(whole, maps["transformers"])["classifier.weight"] == "network.classifier.weight"
    assert renamed(body, maps["transformers-base"])["bias"] == "network.bert.bias"
    assert fitting_maps(body, module.state_dict(), module, build) == ["transformers-base"]


def test_a_map_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(ConfigError, match="no map 'timm' of names for transformers:bert; there are transformers"):
        named_map("timm", Wrapped(), "transformers:bert")
    with pytest.raises(ConfigError, match="no map 'timm' of names for mlp; there is none"):
        named_map("timm", net(), "mlp")


def test_weights_are_read_through_the_map(tmp_path: Path) -> None:
    module = net()
    given = {f"body.{n}": np.full(v.shape, 7, v.numpy().dtype) for n, v in module.state_dict().items()}
    extra = {"body.step": np.zeros((), np.float32)}
    names = {"body.*": "*", "body.step": "", "body.2.bias": "9"}
    path = written(tmp_path, {**given, **extra})
    with pytest.raises(ConfigError) as caught:
        load_initial_weights(module, path, names=names)
    assert "lacks 2.bias [2]" in str(caught.value)
    assert "has 9 [2]" in str(caught.value)
    load_initial_weights(module, path, names={"body.*": "*", "body.step": ""})
    assert all((value == 7).all() for value in module.state_dict().values())


def test_a_known_map_is_named_where_the_names_do_not_fit(tmp_path: Path) -> None:
    path = written(tmp_path, {"weight": np.zeros((3, 2), np.float32), "bias": np.zeros(3, np.float32)})
    with pytest.raises(ConfigError) as caught:
        load_initial_weights(Wrapped(), path, build="transformers:bert")
    assert 'weights-map = "transformers-base"' in caught.value.hint


def test_a_run_file_has_a_map_or_the_name_of_one(tmp_path: Path) -> None:
    written(tmp_path, {"a": np.zeros(1, np.float32)})
    for line in ('weights-map = "timm"', 'weights-map = { "*.gamma" = "*.weight", "step" = "" }'):
        config = load_config_text(RUN.replace("[method]", f"{line}\n[method]"), folder=tmp_path)
        assert config.model.weights_map in ("timm", {"*.gamma": "*.weight", "step": ""})
        assert load_config_text(canonical_toml(config), folder=tmp_path) == config
    assert "weights-map" not in canonical_toml(load_config_text(RUN, folder=tmp_path))


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ('weights-map = "timn"', "'timn' is not known, did you mean 'timm'?"),
        ('weights-map = { "a.*" = "b" }', "'a.*' has 1 times * and 'b' 0"),
        ('weights-map = { "a" = 3 }', "3 is not a name"),
        ("weights-map = 3", "a table expected, a whole number (3) found"),
    ],
)
def test_an_impossible_map_is_told(line: str, told: str, tmp_path: Path) -> None:
    written(tmp_path, {"a": np.zeros(1, np.float32)})
    with pytest.raises(ConfigError) as caught:
        load_config_text(RUN.replace("[method]", f"{line}\n[method]"), folder=tmp_path)
    assert any("$.model.weights-map" in p and told in p for p in caught.value.problems), caught.value.problems


def test_a_map_without_a_file_is_told(tmp_path: Path) -> None:
    text = RUN.replace('weights = "base.safetensors"', 'weights-map = "timm"')
    with pytest.raises(ConfigError, match=r"\$\.model\.weights-map: belongs to weights"):
        load_config_text(text, folder=tmp_path)
