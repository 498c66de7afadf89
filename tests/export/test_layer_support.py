"""What the survey says of a layer is what exporting it does: it passes the gate, or is refused by the same name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from edge.contracts.errors import ApportionError, DeviceRefused, ExportRefused
from edge.contracts.manifest import ArtifactManifest, InputSpec
from edge.runtimes import KNOWN
from edge.runtimes.executorch.build import wheel_folder
from export.bundle import export_artifact
from export.layer_support import LayerSupport, layer_support
from export.training_step import StepSpec
from tests.export.modules import BODIES, CLASSES, FEATURES, IMAGE, Apply, Head, with_head

VOLUME = InputSpec(layout="features", shape=(3, 4, 4))
Built = tuple[nn.Module, InputSpec]


def _headed(body: nn.Module, spec: InputSpec) -> Built:
    return Head(body, spec), spec


def _image(*layers: nn.Module) -> Callable[[], Built]:
    return lambda: _headed(nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), *layers), IMAGE)


def _features(layer: nn.Module) -> Callable[[], Built]:
    return lambda: _headed(nn.Sequential(nn.Linear(12, 8), layer), FEATURES)


LAYERS: dict[str, Callable[[], Built]] = {
    "conv2d-grouped": lambda: with_head("conv2d-grouped"),
    "batch_norm2d": lambda: with_head("batch_norm2d"),
    "max_pool-overlapping": lambda: with_head("max_pool-overlapping"),
    "max_pool-ceil": _image(nn.MaxPool2d(3, 2, ceil_mode=True)),
    "adaptive_pool-uneven": lambda: with_head("adaptive_pool-uneven"),
    "adaptive_max_pool-uneven": _image(nn.AdaptiveMaxPool2d(3)),
    "transposed2d": lambda: with_head("transposed2d"),
    "transposed1d": lambda: with_head("transposed1d"),
    "amax": lambda: with_head("amax"),
    "multihead_attention": lambda: with_head("multihead_attention"),
    "layer_norm": lambda: with_head("layer_norm"),
    "lstm": lambda: with_head("lstm"),
    "upsample": _image(nn.Upsample(scale_factor=2)),
    "reflection-pad": _image(nn.ReflectionPad2d(1)),
    "replication-pad": _image(nn.ReplicationPad2d(1)),
    "cumulative-norm": _image(nn.BatchNorm2d(4, momentum=None)),
    "dropout": _features(nn.Dropout(0.2)),
    "spectral-norm": lambda: _headed(nn.utils.parametrizations.spectral_norm(nn.Linear(12, 8)), FEATURES),
    "sorted": _features(Apply(lambda x: x.sort(1).values)),
    "double": _features(Apply(lambda x: x.double().float())),
    "data-dependent": _features(Apply(lambda x: x if bool(x.sum() > 0) else -x)),
    "numpy": _features(Apply(lambda x: x * float(x.detach().numpy().sum()))),
    "max_pool3d": lambda: _headed(
        nn.Sequential(nn.Unflatten(1, (1, 3)), nn.Conv3d(1, 4, 3, padding=1), nn.MaxPool3d(2, 1)), VOLUME
    ),
}


def _step(spec: InputSpec) -> StepSpec:
    return StepSpec(input=spec, classes=CLASSES, batch=4)


def _refused(support: LayerSupport, runtime: str) -> set[str]:
    rows = support.verdicts[runtime].items()
    return {path or "(the module itself)" for path, verdict in rows if not verdict.is_trained}


def _skip_without(runtime: str) -> None:
    if runtime == "executorch":
        try:
            wheel_folder()
        except DeviceRefused:
            pytest.skip("executorch is not installed here: pip install 'apportion[executorch]'")
    if runtime == "onnxruntime_training":
        from export.formats.ort_training.environment import RuntimeEnvironment

        try:
            RuntimeEnvironment().close()
        except ApportionError:
            pytest.skip("onnxruntime-training is not installed here: make runtime-onnxruntime-training")


DIFFER = ("transposed2d", "amax", "adaptive_pool-uneven", "upsample", "replication-pad", "max_pool3d", "double", "lstm")
"""Layers on which the runtimes differ most."""
PAIRS = [("onnxruntime", name) for name in LAYERS] + [
    pytest.param(runtime, name, marks=pytest.mark.slow)
    for runtime in KNOWN
    if runtime != "onnxruntime"
    for name in DIFFER
]


@pytest.mark.slow
@pytest.mark.parametrize(("runtime", "name"), PAIRS)
def test_verdict_is_what_export_does(runtime: str, name: str, tmp_path: Path) -> None:
    if runtime == "executorch":
        _skip_without(runtime)
    torch.manual_seed(0)
    module, spec = LAYERS[name]()
    support = layer_support(module, _step(spec), [runtime])
    refused = _refused(support, runtime)

    def export() -> ArtifactManifest:
        return export_artifact(module, _step(spec), tmp_path / "artifact", runtime=runtime)

    if not refused:
        _skip_without(runtime)
        parity = export().parity
        assert parity.max_grad_rel_err <= parity.tolerance < 0.05
        return
    with pytest.raises(ExportRefused) as caught:
        export()
    error = caught.value
    assert error.layer in refused
    verdict = support.verdicts[runtime][error.layer]
    assert (verdict.reason, verdict.instead) == (error.reason, error.instead)
    assert f"({support.layers[error.layer].kind})" in str(error)


class _Beside(nn.Module):
    """Layer families side by side, each with its classifier."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__()
        self.families = nn.ModuleDict({name.replace(".", "-"): with_head(name)[0] for name in names})

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([family(x) for family in self.families.values()]).sum(0)


@pytest.mark.slow
@pytest.mark.parametrize(
    "spec", dict.fromkeys(spec for _, spec in BODIES.values()), ids=lambda s: f"{s.layout}-{s.shape}"
)
def test_every_supported_family_is_said_to_train(spec: InputSpec) -> None:
    """They export and pass the gate: ``test_layers.py``."""
    module = _Beside([name for name in BODIES if name not in LAYERS and BODIES[name][1] == spec])
    verdicts = layer_support(module, _step(spec), ["onnxruntime"]).verdicts["onnxruntime"]
    assert {path.split(".")[1] for path in verdicts if path.startswith("families.")} == {*module.families}
    assert not [path for path, verdict in verdicts.items() if not verdict.is_trained]


class _Branch(nn.Module):
    """Cannot be traced, though both layers inside can."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 1)
        self.sorted = Apply(lambda x: x.sort(1).values)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.sorted(self.conv(x))
        return y if bool(x.sum() > 0) else x


class _Mixed(nn.Module):
    """Several kinds of trouble, and layers without any."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.norms = nn.Sequential(nn.BatchNorm2d(4, momentum=None), nn.Dropout(0.1), nn.BatchNorm2d(4))
        self.branch = _Branch()
        self.attention = nn.MultiheadAttention(4, 2, dropout=0.1, batch_first=True)
        self.uncalled = nn.Dropout(0.5)
        self.unused = nn.Linear(2, 2)
        self.head = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        y = self.branch(self.norms(self.stem(x))).flatten(2).transpose(1, 2)
        y = F.relu(self.attention(y, y, y)[0])
        return self.head(y.sort(1).values.mean(1))


@pytest.fixture(scope="module")
def mixed() -> LayerSupport:
    torch.manual_seed(0)
    return layer_support(_Mixed(), _step(IMAGE), ["onnxruntime"])


@pytest.mark.slow
def test_all_refusals_are_found_at_once(mixed: LayerSupport) -> None:
    states = {path: verdict.state for path, verdict in mixed.verdicts["onnxruntime"].items()}
    assert states == {
        "": "refused",
        "stem": "trains",
        "norms.0": "refused",
        "norms.1": "trains",
        "norms.2": "trains",
        "branch": "refused",
        "branch.conv": "trains",
        "branch.sorted": "refused",
        "attention": "trains",
        "head": "trains",
    }
    assert "sort" in mixed.verdicts["onnxruntime"][""].reason
    assert mixed.trained_by() == []


def test_parameters_that_no_gradient_reaches_are_named(mixed: LayerSupport) -> None:
    assert mixed.unreached == ("unused.weight", "unused.bias")


def test_layers_have_shapes_and_parameters(mixed: LayerSupport) -> None:
    stem = mixed.layers["stem"]
    assert [str(size) for size in stem.takes[0].shape] == ["N", "3", "10", "10"]
    assert stem.parameters == 3 * 4 * 9 + 4
    assert mixed.layers["attention"].parameters == 4 * 12 + 12 + 4 * 4 + 4
    assert mixed.operations[""] == ("relu", "sort", "mean")


@pytest.mark.slow
def test_backward_pass_without_a_kernel_is_no_gradient() -> None:
    _skip_without("executorch")
    module, spec = LAYERS["replication-pad"]()
    verdict = layer_support(module, _step(spec), ["executorch"]).verdicts["executorch"]["body.1"]
    assert (verdict.state, verdict.instead) == ("no gradient", "zeros to pad")


def test_rewritten_layers_name_their_passes() -> None:
    module, spec = with_head("instance_norm")
    support = layer_support(module, _step(spec), ["onnxruntime"])
    assert support.verdicts["onnxruntime"]["body.1"].passes == ("instance_norm",)
    assert support.passes["instance_norm"] == "A group norm with one channel per group"


@pytest.mark.slow
def test_frozen_layers_need_no_gradient() -> None:
    _skip_without("executorch")
    torch.manual_seed(0)
    module = Head(nn.Sequential(nn.ReplicationPad2d(1), nn.Conv2d(3, 4, 3)), IMAGE)
    assert layer_support(module, _step(IMAGE), ["executorch"]).trained_by() == ["executorch"]


def test_model_that_does_not_run_is_refused() -> None:
    with pytest.raises(ExportRefused, match="the module's forward fails"):
        layer_support(nn.Sequential(nn.Linear(7, CLASSES)), _step(FEATURES), ["onnxruntime"])


def test_survey_leaves_the_module_and_the_random_state_alone() -> None:
    module, spec = with_head("batch_norm2d")
    before = {name: value.clone() for name, value in module.state_dict().items()}
    state = torch.random.get_rng_state()
    layer_support(module, _step(spec), ["onnxruntime"])
    assert torch.equal(state, torch.random.get_rng_state())
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert module.training
