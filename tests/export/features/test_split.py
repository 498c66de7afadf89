"""Where a step is divided: in front of what is trained, at a value that the rest can be computed from."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from export.capture import Capture
from export.features.programs import with_features
from export.programs import capture_programs
from export.training_step import StepSpec
from tests.export.features.networks import CLASSES, Residual, frozen_step


def programs(module: nn.Module, step: StepSpec) -> dict[str, Capture]:
    return with_features(capture_programs(module, step), step)


def convolutions(program: Capture) -> int:
    nodes = program.graph.graph.nodes
    return sum(node.target is torch.ops.aten.convolution.default for node in nodes)


def test_whole_blocks_are_in_one_program_and_the_rest_in_the_other() -> None:
    module = Residual()
    found = programs(module, frozen_step(module, "stem", "blocks.0"))
    assert list(found) == ["train", "features", "eval", "stats"]
    step, features = found["train"], found["features"]
    assert features.outputs == ("features",)
    assert {i.name.partition(".")[0] for i in features.inputs} == {"stem", "blocks", "input"}
    names = [i.name for i in step.inputs]
    assert "input" not in names
    assert not [name for name in names if name.startswith(("stem", "blocks.0"))]
    (spec,) = [i for i in step.inputs if i.role == "features"]
    assert spec.shape == ("batch", 4, 6, 6)
    assert (convolutions(features), convolutions(step)) == (3, 2)
    assert not [name for name in step.outputs if name.startswith("next:blocks.0")]


def test_cut_inside_a_block_divides_in_front_of_it_because_its_shortcut_is_read_too() -> None:
    module = Residual()
    found = programs(module, frozen_step(module, "stem", "blocks.0", "blocks.1.conv1", "blocks.1.norm1"))
    assert (convolutions(found["features"]), convolutions(found["train"])) == (3, 2)
    assert "blocks.1.conv1.weight" in [i.name for i in found["train"].inputs]


@pytest.mark.slow
def test_nothing_is_divided_where_the_first_layer_is_trained() -> None:
    module = Residual()
    for step in (frozen_step(module, "blocks", "head"), frozen_step(module, "nothing")):
        plain = capture_programs(module, step)
        assert with_features(plain, step) == plain


def test_step_that_asks_for_no_features_is_left_alone() -> None:
    module = Residual()
    assert "features" not in programs(module, frozen_step(module, "stem", features=""))


def test_statistics_of_the_batch_end_the_program_of_features() -> None:
    class Centred(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.low, self.high = nn.Conv2d(2, 4, 3), nn.Linear(4, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            low = self.low(x)
            logits: Tensor = self.high((low - low.mean(0, keepdim=True)).mean((2, 3)))
            return logits

    module = Centred()
    features = programs(module, frozen_step(module, "low"))["features"]
    assert [n.target for n in features.graph.graph.nodes if n.op == "call_function"] == [
        torch.ops.aten.convolution.default
    ]


def test_smallest_of_equal_values_is_kept() -> None:
    module = nn.Sequential(nn.Conv2d(2, 8, 3, padding=1), nn.MaxPool2d(3), nn.ZeroPad2d(2), nn.Conv2d(8, 4, 3))
    module = nn.Sequential(*module, nn.Flatten(), nn.Linear(4 * 4 * 4, CLASSES))
    (spec,) = [i for i in programs(module, frozen_step(module, "0."))["train"].inputs if i.role == "features"]
    assert spec.shape == ("batch", 8, 2, 2)
