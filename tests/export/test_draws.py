"""Dropout and other draws: inputs of the step, the same numbers in torch, in graphs and in the simulation."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from coordinator.simulation.torch_session import TorchArtifact
from edge.contracts.errors import DeviceRefused, ExportRefused, MessageRejected
from edge.contracts.manifest import ArtifactManifest, InputSpec
from edge.contracts.plan import BlobRef, Schedule, WorkOrder
from edge.contracts.streams import drawn_value, self_test_value
from edge.contracts.tensors import TensorSpec
from edge.runtimes import runtime as runtime_named
from edge.runtimes.base import Session
from edge.training.batches import BatchOrder, Examples
from edge.training.local_data import LocalData
from edge.training.self_test import check_self_test
from edge.training.steps import train
from export.bundle import artifact_key, export_artifact
from export.draws import draws_of, fed
from export.formats.onnx_step.format import OnnxStep
from export.programs import capture_programs, program_functions
from export.traceable_module import traceable_module
from export.training_step import Optimizer, StepSpec, Variant
from tests.export.modules import Apply

pytestmark = pytest.mark.runtime

IMAGE = InputSpec(layout="chw", shape=(2, 6, 6))
SEQUENCE = InputSpec(layout="features", shape=(3, 6))
STEP = StepSpec(input=IMAGE, classes=3, batch=8, optimizer=Optimizer(weight_decay=False))
STEPS = 2


class DropPath(nn.Module):
    """As in timm: whole examples of a branch are dropped."""

    def __init__(self, drop: float) -> None:
        super().__init__()
        self.drop = drop

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        mask = x.new_empty((x.shape[0],) + (1,) * (x.dim() - 1)).bernoulli_(1 - self.drop)
        return x * mask.div_(1 - self.drop)


class Drops(nn.Module):
    """Four ways to drop, one of them functional."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, 4, 3, padding=1)
        self.drop = nn.Dropout(0.1)
        self.norm = nn.BatchNorm2d(4)
        self.channels = nn.Dropout2d(0.3)
        self.path = DropPath(0.25)
        self.branch = nn.Conv2d(4, 4, 1)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.drop(self.first(x))))
        x = self.channels(x) + self.path(self.branch(x))
        return self.head(F.dropout(x.mean((2, 3)), 0.2, self.training))


class ByHand(Drops):
    """The same with the masks given and multiplied by hand."""

    masks: Mapping[str, Tensor]

    def forward(self, x: Tensor) -> Tensor:
        kept = {n: m.to(x.dtype) for n, m in self.masks.items()}
        x = torch.relu(self.norm(self.first(x) * kept["drop#draw"] / 0.9))
        x = x * kept["channels#draw"] / 0.7 + self.branch(x) * kept["path#draw"] / 0.75
        return self.head(x.mean((2, 3)) * kept["module#draw"] / 0.8)


class Reads(nn.Module):
    """A sequence layer and a classifier of its mean."""

    def __init__(self, layer: nn.Module, width: int, read: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.read, self.head = layer, read, nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.read(self.layer, x).mean(1))


def steps_first(layer: nn.Module, x: Tensor) -> Tensor:
    return layer(x.transpose(0, 1))[0].transpose(0, 1)


def seeded(make: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return make()


def around(layer: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(72, 6), layer, nn.Linear(6, 3))


def order(manifest: ArtifactManifest, **changes: object) -> WorkOrder:
    blob = BlobRef("0" * 64, 1, "raw", 1)
    values = {
        "assignment_id": "a", "federation": "f", "device": "d", "round": 0, "attempt": 0, "artifact": blob,
        "weights": blob, "schedule": Schedule(steps=STEPS), "batch": manifest.batch, "last_batch": "drop",
        "data_seed": 2**64 - 1, "hyper": {"lr": 0.1, "momentum": 0.9}, "upload": (), "threads": 1,
    }  # fmt: skip
    return WorkOrder(**(values | changes))


def examples(manifest: ArtifactManifest) -> Examples:
    numbers = np.random.default_rng(3)
    x = numbers.normal(size=(20, *manifest.input.shape)).astype(np.float32)
    return Examples(LocalData("here", x, numbers.integers(0, 3, 20)), manifest)


def load(session: Session, manifest: ArtifactManifest) -> None:
    roles = ("parameter", "buffer", "slot")
    session.load_state({t.name: self_test_value(t, 1, 8) for t in manifest.tensors if t.role in roles})


def trained(session: Session, manifest: ArtifactManifest, **changes: object) -> dict[str, np.ndarray]:
    """Parameters after an order's steps."""
    load(session, manifest)
    train(session, manifest, order(manifest, **changes), examples(manifest))
    return {t.name: np.array(session.read(t.name)) for t in manifest.specs("parameter")}


def opened(folder: Path, manifest: ArtifactManifest) -> Session:
    files = {f.name: folder / f.name for f in manifest.files}
    return runtime_named(manifest.runtime).load(manifest, files, threads=1)


@pytest.fixture(scope="module")
def drops(tmp_path_factory: pytest.TempPathFactory) -> tuple[ArtifactManifest, Path]:
    folder = tmp_path_factory.mktemp("drops") / "artifact"
    return export_artifact(seeded(Drops), STEP, folder), folder


@pytest.mark.slow
def test_draws_are_inputs_of_training_programs_alone(drops: tuple[ArtifactManifest, Path]) -> None:
    manifest, _ = drops
    found = {t.name: (t.shape, t.dtype, round(t.probability, 6)) for t in manifest.specs("draw")}
    assert found == {
        "drop#draw": (("batch", 4, 6, 6), "bool", 0.9),
        "channels#draw": (("batch", 4, 1, 1), "bool", 0.7),
        "path#draw": (("batch", 1, 1, 1), "bool", 0.75),
        "module#draw": (("batch", 4), "bool", 0.8),
    }
    taken = {program.name: found.keys() & set(program.inputs) for program in manifest.programs}
    assert taken == {"train": found.keys(), "eval": set(), "stats": set()}
    assert manifest.parity.max_grad_rel_err <= manifest.parity.tolerance


def test_steps_are_those_of_masks_written_out_by_hand(drops: tuple[ArtifactManifest, Path]) -> None:
    manifest, folder = drops
    session = opened(folder, manifest)
    check_self_test(session, manifest, steps=3)
    found = trained(session, manifest)
    asked, data = order(manifest), examples(manifest)
    module = seeded(ByHand).double().train()
    load_named(module, manifest)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    plan = BatchOrder(len(data), 8, "drop", asked.data_seed)
    for step, indices in enumerate(plan.batches(STEPS)):
        x, y = data.batch(indices, 0)
        drawn = {t.name: drawn_value(t, asked.data_seed, step, 8) for t in manifest.specs("draw")}
        module.masks = {n: torch.from_numpy(v) for n, v in drawn.items()}
        optimizer.zero_grad()
        F.cross_entropy(module(torch.from_numpy(x).double()), torch.from_numpy(y)).backward()
        optimizer.step()
    for name, parameter in module.named_parameters():
        np.testing.assert_allclose(found[name], parameter.detach().numpy(), rtol=2e-5, atol=2e-6, err_msg=name)


def load_named(module: nn.Module, manifest: ArtifactManifest) -> None:
    with torch.no_grad():
        for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
            if tensor.is_floating_point():
                tensor.copy_(torch.from_numpy(self_test_value(manifest.tensor(name), 1, 8)))


def test_simulation_steps_as_the_device(drops: tuple[ArtifactManifest, Path]) -> None:
    manifest, folder = drops
    simulated = TorchArtifact(seeded(Drops), STEP, classes=manifest.classes)
    assert simulated.manifest.specs("draw") == manifest.specs("draw")
    ours, theirs = trained(simulated.session("cpu"), simulated.manifest), trained(opened(folder, manifest), manifest)
    for name, value in theirs.items():
        np.testing.assert_allclose(ours[name], value, rtol=2e-5, atol=2e-6, err_msg=name)


def test_a_repeated_assignment_draws_the_same_and_another_one_other_masks(
    drops: tuple[ArtifactManifest, Path],
) -> None:
    manifest, folder = drops
    session = opened(folder, manifest)
    first = trained(session, manifest)
    load(session, manifest)
    train(session, manifest, order(manifest, schedule=Schedule(steps=1)), examples(manifest))  # ended after a step
    again, other = trained(session, manifest), trained(session, manifest, data_seed=1)
    assert {n: v.tobytes() for n, v in first.items()} == {n: v.tobytes() for n, v in again.items()}
    assert first["head.weight"].tobytes() != other["head.weight"].tobytes()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["onnxruntime", "executorch"])
def test_micro_batches_share_the_masks_of_the_whole_batch(name: str, tmp_path: Path) -> None:
    if name == "executorch":
        pytest.importorskip("executorch")
    found = []
    for parts in (1, 4):
        spec = msgspec.structs.replace(STEP, micro_batches=parts)
        folder = tmp_path / str(parts)
        manifest = export_artifact(seeded(lambda: around(nn.Dropout(0.3))), spec, folder, runtime=name)
        found.append(trained(opened(folder, manifest), manifest))
    for parameter, value in found[0].items():
        np.testing.assert_allclose(found[1][parameter], value, rtol=1e-4, atol=1e-6, err_msg=parameter)
    assert "2#draw" in manifest.program("accumulate").inputs
    assert "2#draw" not in manifest.program("train").inputs


def test_memory_of_a_step_counts_the_masks() -> None:
    plain, dropped = (
        OnnxStep().write(nn.Sequential(nn.Flatten(), nn.Linear(72, 6), nn.Dropout(p), nn.Linear(6, 3)), STEP).memory
        for p in (0.0, 0.5)
    )
    assert dropped.batch == plain.batch + 8 * 6


SEQUENCES: dict[str, tuple[Callable[[], nn.Module], dict[str, tuple[object, ...]]]] = {
    "lstm": (
        lambda: Reads(nn.LSTM(6, 4, 3, dropout=0.3, batch_first=True), 4, lambda layer, x: layer(x)[0]),
        {"layer#draw": ("batch", 3, 4), "layer#draw1": ("batch", 3, 4)},
    ),
    "two-way-gru": (
        lambda: Reads(nn.GRU(6, 4, 2, dropout=0.3, bidirectional=True), 8, steps_first),
        {"layer#draw": ("batch", 3, 8)},
    ),
    "rnn": (
        lambda: Reads(nn.RNN(6, 4, 2, dropout=0.3, batch_first=True), 4, lambda layer, x: layer(x)[0]),
        {"layer#draw": ("batch", 3, 4)},
    ),
    "attention": (
        lambda: Reads(nn.MultiheadAttention(6, 2, dropout=0.2, batch_first=True), 6, lambda a, x: a(x, x, x)[0]),
        {"layer#draw": ("batch", 2, 3, 3)},
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", SEQUENCES)
def test_layers_that_drop_inside_pass_the_gate(name: str, tmp_path: Path) -> None:
    make, expected = SEQUENCES[name]
    spec = msgspec.structs.replace(STEP, input=SEQUENCE)
    manifest = export_artifact(seeded(make), spec, tmp_path / "artifact")
    assert {t.name: t.shape for t in manifest.specs("draw")} == expected


NOISE: dict[str, tuple[Callable[[Tensor], Tensor], tuple[object, ...]]] = {
    "normal": (lambda x: x + 0.1 * torch.randn_like(x), ("batch", 6, 2)),
    "uniform": (lambda x: x + torch.empty_like(x).uniform_(-0.1, 0.1), ("batch", 6)),
    "floor": (lambda x: x * (0.7 + torch.rand((x.shape[0], 1), dtype=x.dtype)).floor_(), ("batch", 1)),
    "probabilities": (lambda x: x * torch.bernoulli(torch.full_like(x, 0.7)), ("batch", 6)),
    "one-for-all": (lambda x: x * (0.5 + torch.rand(6, dtype=x.dtype)), (6,)),
}


class InTraining(Apply):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if self.training else x


@pytest.mark.parametrize("name", NOISE)
def test_noise_passes_the_gate(name: str, tmp_path: Path) -> None:
    function, shape = NOISE[name]
    manifest = export_artifact(seeded(lambda: around(InTraining(function))), STEP, tmp_path / "artifact")
    assert [(t.name, t.shape, t.probability) for t in manifest.specs("draw")] == [("2#draw", shape, 0.0)]


@pytest.mark.parametrize("inplace", [False, True])
def test_rrelu_trains_with_drawn_slopes(inplace: bool, tmp_path: Path) -> None:
    module = seeded(lambda: around(nn.RReLU(0.1, 0.4, inplace=inplace)))
    manifest = export_artifact(module, STEP, tmp_path / "artifact")
    assert [(t.name, t.dtype) for t in manifest.specs("draw")] == [("2#draw", "float32")]


def test_variants_draw_in_their_own_shapes(tmp_path: Path) -> None:
    sizes = (("1.weight", (3, 72)), ("1.bias", (3,)), ("3.weight", (3, 3)))
    spec = msgspec.structs.replace(STEP, variants=(Variant("half", sizes),))
    manifest = export_artifact(seeded(lambda: around(nn.Dropout(0.4))), spec, tmp_path / "artifact")
    shapes = {p.name: {n: manifest.tensor(n).shape for n in p.inputs if "#draw" in n} for p in manifest.programs}
    assert shapes == {
        "train": {"2#draw": ("batch", 6)},
        "train_half": {"2#draw@half": ("batch", 3)},
        "eval": {},
    }


@pytest.mark.slow
def test_a_teacher_and_the_statistics_draw_nothing(tmp_path: Path) -> None:
    spec = msgspec.structs.replace(STEP, distillation=True)
    manifest = export_artifact(seeded(Drops), spec, tmp_path / "artifact")
    assert len(manifest.specs("draw")) == 4


def test_a_module_without_draws_is_traced_as_ever() -> None:
    module = around(nn.ReLU())
    functions = program_functions(module, STEP)
    assert all(function.draws == () for function in functions.values())
    kinds = {str(n.target) for n in capture_programs(around(nn.Dropout(0.0)), STEP)["train"].graph.graph.nodes}
    assert not [kind for kind in kinds if "dropout" in kind or "copy_" in kind]


def test_the_order_of_draws_is_torchs_in_a_replaced_forward() -> None:
    module = nn.LSTM(6, 4, 2, dropout=0.5, bidirectional=True, batch_first=True).train()
    spec = msgspec.structs.replace(STEP, input=SEQUENCE)
    draws = draws_of(module, spec)
    replaced = traceable_module(copy.deepcopy(module), frozenset())
    x = torch.randn(8, 3, 6)
    values = {d.spec.name: torch.from_numpy(self_test_value(d.spec, 1, 8)) for d in draws}
    with fed(draws, values):
        expected = module(x)
    with fed(draws, values):
        found = replaced(x)
    for ours, theirs in zip((found[0], *found[1]), (expected[0], *expected[1]), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_random_states_stay_as_they_were() -> None:
    module = seeded(Drops)
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    program_functions(module, STEP)
    assert (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()) == before


def test_numbers_drawn_by_another_thread_are_no_refusal() -> None:
    """It happens once in a while; a module that draws does so in every run."""
    calls = iter(range(1000))
    module = around(InTraining(lambda x: x if next(calls) else x * (1 + 0 * random.random())))
    assert draws_of(module.train(), STEP) == ()


def _other_numbers() -> Callable[[Tensor], Tensor]:
    calls = iter(range(1000))
    return lambda x: F.dropout(x, 0.1 * (1 + next(calls) % 5))


REFUSED: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "python": (lambda x: x * (random.random() < 0.5), r"Python's random .*torch\.rand"),
    "numpy": (lambda x: x * float(np.random.rand()), r"numpy\.random .*torch\.rand"),
    "hidden": (lambda x: (torch.manual_seed(3), x)[1], r"torch's generator"),
    "multinomial": (lambda x: x * torch.multinomial(x.exp(), 1), r"aten\.multinomial.*torch\.rand"),
    "permutation": (lambda x: x[:, torch.randperm(6)], r"aten\.randperm"),
    "square": (lambda x: x * torch.rand(x.shape[0], x.shape[0]).mean(), r"no part for each example"),
    "changing": (_other_numbers(), r"other random numbers from one run to the next"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_randomness_is_refused_by_the_name_of_its_layer(name: str, tmp_path: Path) -> None:
    function, words = REFUSED[name]
    with pytest.raises(ExportRefused, match=words) as error:
        export_artifact(around(InTraining(function)), STEP, tmp_path / "artifact")
    assert error.value.layer == "2"


def test_settings_of_what_draws_are_in_the_key() -> None:
    keys = {artifact_key(around(DropPath(p)), STEP) for p in (0.1, 0.2)}
    attention = (nn.MultiheadAttention(6, 2, dropout=p, batch_first=True) for p in (0.1, 0.2))
    keys |= {artifact_key(around(layer), STEP) for layer in attention}
    assert len(keys) == 4


def test_an_agent_that_does_not_know_a_role_refuses_the_manifest(drops: tuple[ArtifactManifest, Path]) -> None:
    data = drops[0].to_bytes().replace(b'"role":"draw"', b'"role":"lottery"')
    with pytest.raises(MessageRejected, match="lottery"):
        ArtifactManifest.from_bytes(data)


def test_draws_of_another_dtype_are_refused(drops: tuple[ArtifactManifest, Path]) -> None:
    manifest, folder = drops
    tensors = tuple(msgspec.structs.replace(t, dtype="int8") if t.role == "draw" else t for t in manifest.tensors)
    changed, session = msgspec.structs.replace(manifest, tensors=tensors), opened(folder, manifest)
    with pytest.raises(DeviceRefused, match=r"'drop#draw' of int8"):
        train(session, changed, order(manifest), examples(manifest))


def test_a_spec_without_a_probability_is_read() -> None:
    old = b'{"name":"x","shape":["batch",2],"dtype":"float32","role":"input","capacity":0}'
    assert msgspec.json.decode(old, type=TensorSpec).probability == 0.0
