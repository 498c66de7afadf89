"""Costs of an artifact by hand: parameters and multiply-accumulates per sample."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from edge.contracts.manifest import InputSpec
from export.cost import ConvolutionShape, forward_macs, step_work
from export.formats.executorch_program import tiles
from export.formats.executorch_program.tiles import in_tiles
from export.programs import capture_programs
from export.training_step import FactorPair, StepSpec
from profiles.step_work import StepWork


@pytest.fixture(scope="module", autouse=True)
def _traced_before() -> None:
    """A process's first trace loads what all of them need, which is nobody's cost."""
    module = nn.Sequential(
        nn.Conv2d(1, 1, 1), nn.BatchNorm2d(1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1, 2)
    )
    capture_programs(module, StepSpec(input=InputSpec(layout="chw", shape=(1, 4, 4)), classes=2))


def macs(module: nn.Module, spec: InputSpec, classes: int) -> int:
    return forward_macs(capture_programs(module, StepSpec(input=spec, classes=classes))["eval"])


def test_macs_of_convolutions_norm_and_pooling_by_hand() -> None:
    module = nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, padding=1),  # 8 * 4 * 4 outputs of 27 products
        nn.BatchNorm2d(8),  # 2 per element
        nn.ReLU(),  # 1 per element
        nn.Conv2d(8, 8, 3, padding=1, groups=4),  # 8 * 4 * 4 outputs of 18 products
        nn.AdaptiveAvgPool2d(1),  # 8 * 4 * 4 inputs
        nn.Flatten(),
        nn.Linear(8, 5),  # 40
    )
    elements = 8 * 4 * 4
    expected = elements * 27 + 2 * elements + elements + elements * 18 + elements + 40
    assert macs(module, InputSpec(layout="chw", shape=(3, 8, 8)), 5) == expected


def test_macs_of_a_transposed_convolution_by_hand() -> None:
    module = nn.Sequential(nn.ConvTranspose1d(4, 6, 3, stride=2), nn.Flatten(), nn.Linear(6 * 11, 2))
    # Each of the 4 * 5 inputs meets 6 outputs through 3 taps.
    assert macs(module, InputSpec(layout="features", shape=(4, 5)), 2) == 4 * 5 * 6 * 3 + 6 * 11 * 2


def test_macs_of_an_lstm_by_hand() -> None:
    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.LSTM(3, 4, batch_first=True)

        def forward(self, x):  # type: ignore[no-untyped-def]
            return self.rnn(x)[0][:, -1]

    # Six steps, four gates of four units, each from three inputs and four units.
    assert macs(Last(), InputSpec(layout="features", shape=(6, 3)), 4) == 6 * 4 * 4 * (3 + 4)


def work(module: nn.Module, spec: StepSpec) -> StepWork:
    return step_work(capture_programs(module, spec), spec)


def test_work_of_a_step_by_hand() -> None:
    """The first layer has no gradient of its input, a frozen one none of its weight; channels are padded to 16."""
    module = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(8, 20, 3, padding=1, bias=False),
        nn.ReLU(),
        nn.Conv2d(20, 20, 3, padding=1, groups=20),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(20, 5),
    )
    spec = StepSpec(input=InputSpec(layout="chw", shape=(3, 6, 6)), classes=5, batch=7, frozen=("2.weight",))
    first, second, grouped = 7 * 36 * 27 * 8, 7 * 36 * 72 * 20, 7 * 36 * 9 * 20
    found = work(module, spec)
    assert found.convolution_macs == 2 * first + 2 * second + 3 * grouped
    padded = 2 * first * (16 * 16 / (3 * 8)) + 2 * second * (16 * 32 / (8 * 20))
    assert abs(found.padded_macs / padded - 1) < 1e-5
    assert found.matrix_macs == 3 * 7 * 20 * 5


def test_products_in_tiles_are_16_of_36() -> None:
    """The second layer alone: the first has too few channels, the third a stride."""
    module = nn.Sequential(
        nn.Conv2d(16, 32, 3, padding=1, bias=False),
        nn.Conv2d(32, 32, 3, padding=1, bias=False),
        nn.Conv2d(32, 32, 3, stride=2, padding=1, bias=False),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 5),
    )
    spec = StepSpec(input=InputSpec(layout="chw", shape=(16, 6, 6)), classes=5, batch=7)
    found = step_work(capture_programs(module, spec), spec, in_tiles)
    first, second, third = 7 * 36 * 9 * 16 * 32, 7 * 36 * 9 * 32 * 32, 7 * 9 * 9 * 32 * 32
    assert found.convolution_macs == 2 * first + 3 * second + 3 * third
    assert abs(found.padded_macs / (2 * first + 3 * second * 16 / 36 + 3 * third) - 1) < 1e-5


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, True),
        ({"examples": 3}, False),  # 27 tiles
        ({"weight": (48, 32, 3, 3)}, True),
        ({"weight": (40, 32, 3, 3)}, False),
        ({"weight": (32, 16, 3, 3)}, False),
        ({"weight": (32, 32, 1, 1)}, False),
        ({"stride": (1, 2)}, False),
        ({"dilation": (2, 2)}, False),
        ({"padding": (3, 1)}, False),
        ({"output": (1, 6)}, False),
        ({"groups": 2}, False),
    ],
)
def test_convolutions_in_tiles_are_those_of_the_kernels(changes: dict[str, Any], expected: bool) -> None:
    shape = ConvolutionShape(4, (32, 32, 3, 3), (6, 6), (1, 1), (1, 1), (1, 1), 1)
    assert in_tiles(replace(shape, **changes)) is expected
    source = (Path(tiles.__file__).parents[3] / "edge/runtimes/executorch/native/winograd.cpp").read_text("utf-8")
    found = re.search(r"kFewest = (\d+), kChannels = (\d+), kTiles = (\d+);", source)
    assert found is not None
    assert tuple(map(int, found.groups())) == (tiles.FEWEST_CHANNELS, tiles.CHANNELS, tiles.FEWEST_TILES)


def test_work_of_a_penalty_does_not_follow_the_batch() -> None:
    module = nn.Sequential(nn.Linear(12, 4, bias=False), nn.Linear(4, 10, bias=False), nn.Linear(10, 3))

    def matrix_macs(batch: int) -> int:
        pair = FactorPair(u="1.weight", v="0.weight")
        spec = StepSpec(input=InputSpec(layout="features", shape=(12,)), classes=3, batch=batch, frobenius=(pair,))
        return work(module, spec).matrix_macs

    each = 2 * 12 * 4 + 3 * 4 * 10 + 3 * 10 * 3
    grams = 2 * 4 * 4 * (12 + 10)
    assert (matrix_macs(5), matrix_macs(50)) == (5 * each + grams, 50 * each + grams)


@pytest.mark.slow
def test_micro_batches_do_the_work_of_the_whole_batch() -> None:
    module = nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 3))
    whole = StepSpec(input=InputSpec(layout="features", shape=(6,)), classes=3, batch=8)
    parts = StepSpec(input=InputSpec(layout="features", shape=(6,)), classes=3, batch=8, micro_batches=4)
    assert work(module, parts) == work(module, whole)
