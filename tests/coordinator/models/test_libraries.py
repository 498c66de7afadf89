"""Models of other packages by name: found, built at the run's shape and classes, or refused with the next step."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from coordinator.cli.own_code import model_code
from coordinator.models.catalog import build_model, input_spec, model_entry
from coordinator.models.libraries import LIBRARIES, is_own, library_of
from coordinator.models.libraries.config_file import with_config_file
from coordinator.run_file.loading import load_config_text
from edge.contracts.errors import ConfigError

VIT = {
    "model_type": "vit",
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "image_size": 16,
    "patch_size": 8,
    "num_labels": 1000,
    "auto_map": {"AutoModel": "somebody--code.Model"},
}


def run_text(build: str, more: str = "classes = 3") -> str:
    return f"""
[federation]
name = "fed"
rounds = 1
[model]
build = "{build}"
{more}
[method]
name = "fedavg"
[data]
source = "digits"
[cohort]
size = 2
"""


def test_names_of_packages_are_not_the_users_code() -> None:
    assert not is_own("timm:resnet10t")
    assert not is_own("resnet20")
    assert is_own("torchvision.models:resnet18")
    assert model_code("transformers:vit") == []
    assert model_code("my_package.models:build") == ["my_package.models:build"]
    assert model_entry("timm:resnet10t") is None


def test_a_data_source_named_like_a_package_is_still_code() -> None:
    config = load_config_text(run_text("timm:resnet10t").replace('"digits"', '"timm:create_model"'))
    from coordinator.cli.own_code import named_by

    assert "timm:create_model" in named_by(config)
    assert "timm:resnet10t" not in named_by(config)


@pytest.mark.parametrize("package", sorted(name for name, library in LIBRARIES.items() if library.package))
def test_a_package_that_is_not_installed_is_named_with_its_command(
    package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [n for n in sys.modules if n.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)  # what Python keeps of a package that is not there
    library = library_of(f"{package}:anything")
    assert library is not None
    with pytest.raises(ConfigError, match=f"needs? .*{package}|{package} models need") as caught:
        build_model(f"{package}:{library.example}", classes=3)
    assert caught.value.hint == f"pip install {package}"


def test_a_run_file_takes_a_model_without_the_shape_of_its_input() -> None:
    config = load_config_text(run_text("timm:vit_tiny_patch16_224"))
    assert (config.model.build, config.model.input) == ("timm:vit_tiny_patch16_224", ())


def test_a_run_file_without_classes_is_refused_with_its_path() -> None:
    with pytest.raises(ConfigError) as caught:
        load_config_text(run_text("timm:resnet10t", ""))
    assert caught.value.problems == (
        "$.model.classes: is missing; timm:resnet10t needs a number of classes or their names",
    )


def test_a_config_json_travels_on_as_text(tmp_path: Path) -> None:
    (tmp_path / "small.json").write_text(json.dumps(VIT))
    config = load_config_text(run_text("transformers:small.json"), folder=tmp_path)
    assert config.model.build == "transformers:vit"
    kept = json.loads(config.model.options["config"])
    assert kept["hidden_size"] == 16
    assert not {"auto_map", "num_labels", "model_type"} & kept.keys()


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (None, "FileNotFoundError"),
        ("{", "JSONDecodeError"),
        ("[1]", "TypeError"),
        ('{"hidden_size": 8}', "model_type"),
        ('{"model_type": "../vit"}', "../vit"),
    ],
)
def test_a_config_json_that_is_none_is_refused(text: str | None, named: str, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "model.json").write_text(text)
    with pytest.raises(ConfigError) as caught:
        with_config_file("transformers:model.json", {}, tmp_path)
    assert named in caught.value.problems[0]
    assert "model.json" in caught.value.problems[0]


def built_elsewhere(code: str) -> str:
    """What ``code`` prints in a process of its own: these packages take seconds to import, and warn."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


BUILD = """
import torch
from coordinator.models.catalog import build_model, example_input, input_spec
from edge.contracts.errors import ConfigError
def shapes(name, shape=None, **options):
    module = build_model(name, input_shape=shape, classes=5, seed=1, **options).eval()
    again = build_model(name, input_shape=shape, classes=5, seed=1, **options)
    assert all(torch.equal(a, b) for a, b in zip(module.state_dict().values(), again.state_dict().values()))
    spec = module.input_spec
    x = torch.zeros(2, *spec.shape, dtype=getattr(torch, spec.dtype))
    with torch.no_grad():
        print(spec.layout, spec.shape, tuple(module(x).shape))
def refused(name, shape=None, **options):
    try:
        build_model(name, input_shape=shape, classes=5, **options)
    except ConfigError as error:
        print(error.problems[0])
"""


def require(package: str) -> None:
    """Skip without ``package``; not imported here, where torchvision would not find its operators."""
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed: pip install {package}")


@pytest.mark.slow
def test_timm_models_are_built_at_the_runs_shape() -> None:
    require("timm")
    printed = built_elsewhere(
        BUILD
        + """
shapes("timm:resnet10t", (1, 48, 48))
shapes("timm:vit_tiny_patch16_224", (3, 32, 32), depth=1)
shapes("timm:resnet10t")
refused("timm:resnet10", (3, 32, 32))
refused("timm:hf-hub:somebody/model")
refused("timm:resnet10t", pretrained=True)
refused("timm:resnet10t", (64,))
"""
    ).splitlines()
    assert printed[:3] == [
        "chw (1, 48, 48) (2, 5)",
        "chw (3, 32, 32) (2, 5)",
        "chw (3, 176, 176) (2, 5)",  # timm's own settings of it
    ]
    assert "did you mean" in printed[3]
    assert "has no 'hf-hub:somebody/model'" in printed[4]
    assert "[model] weights" in printed[5]
    assert "takes images" in printed[6]


@pytest.mark.slow
def test_torchvision_models_are_built_beside_any_torch() -> None:
    pytest.importorskip(
        "torchvision", reason="torchvision is not installed: pip install torchvision", exc_type=Exception
    )
    printed = built_elsewhere(
        BUILD
        + """
shapes("torchvision:mobilenet_v3_small", (3, 32, 32))
refused("torchvision:fasterrcnn_resnet50_fpn")
refused("torchvision:resnet18", weights="DEFAULT")
refused("torchvision:resnet18", (1, 32, 32))
"""
    ).splitlines()
    assert printed[0] == "chw (3, 32, 32) (2, 5)"
    assert "for classification" in printed[1]
    assert "[model] weights" in printed[2]
    assert "[1, 32, 32]" in printed[3]


@pytest.mark.slow
def test_transformers_models_are_built_from_settings() -> None:
    require("transformers")
    config = json.dumps({key: value for key, value in VIT.items() if key != "auto_map"})
    printed = built_elsewhere(
        BUILD
        + f"""
shapes("transformers:vit", config={config!r})
shapes("transformers:vit", (1, 24, 24), config={config!r})
bert = dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, vocab_size=50)
shapes("transformers:bert", (12,), **bert)
print(input_spec("transformers:bert", input_shape=(12,), options=bert).vocabulary)
refused("transformers:bert")
refused("transformers:bort", (12,))
refused("transformers:bert", (12,), hidden_sice=16)
refused("transformers:bert", (12,), num_labels=16)
"""
    ).splitlines()
    assert printed[:4] == [
        "chw (3, 16, 16) (2, 5)",
        "chw (1, 24, 24) (2, 5)",
        "tokens (12,) (2, 5)",
        "50",
    ]
    assert "number of tokens" in printed[4]
    assert "did you mean bert" in printed[5]
    assert "hidden_sice" in printed[6]
    assert "[model] classes" in printed[7]


@pytest.mark.slow
def test_a_transformers_classifier_trains_through_the_gate_and_is_verified(tmp_path: Path) -> None:
    require("transformers")
    pytest.importorskip("onnxruntime", reason="needs onnxruntime")
    (tmp_path / "vit.json").write_text(json.dumps(VIT))
    apportion = [sys.executable, "-m", "edge"]
    export = [*apportion, "export", "--model", "transformers:vit.json", "--classes", "5", "--batch", "2", "--out", "a"]
    for command in (export, [*apportion, "verify", "a", "--json"]):
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["ok"] is True


def test_the_shape_of_an_own_model_is_still_asked_for() -> None:
    with pytest.raises(ConfigError, match="needs the shape of one example"):
        input_spec("my_package:build")
