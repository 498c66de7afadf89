"""Costs of an artifact by hand: parameters and multiply-accumulates per sample."""

from __future__ import annotations

from torch import nn

from edge.contracts.manifest import InputSpec
from export.cost import forward_macs
from export.programs import capture_programs
from export.training_step import StepSpec


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
