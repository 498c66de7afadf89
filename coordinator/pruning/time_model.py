"""Seconds of one round as a function of what is kept: a constant, and a coefficient per weight of every layer.

T(M) = c + sum over kept weights of t_l, with t_l = I tau_l + q: computation per weight and local iteration, and
communication per weight, both directions. Source: PruneFL, section IV-B and the constants of its published code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from coordinator.pruning.masks import Masks
from edge.contracts.errors import ConfigError

if TYPE_CHECKING:
    from coordinator.config.method_options import Options

SECONDS_PER_WEIGHT_SENT = 5.561621025626998e-6
"""q of the prototype: 4 bytes down and 4 up at 1.44 MB/s."""


@dataclass(frozen=True)
class TimeModel:
    """Attributes:
    constant_s: seconds of a round at density 0.
    weight_s: seconds per kept weight, by weight name.
    """

    constant_s: float
    weight_s: Mapping[str, float]

    def round_s(self, masks: Masks) -> float:
        """Seconds of a round that trains and exchanges the kept weights."""
        return self.constant_s + sum(self.weight_s[name] * int(mask.sum()) for name, mask in masks.items())

    def even_round_s(self, sizes: Mapping[str, int], density: float) -> float:
        """Seconds of a round that keeps the same share of every layer."""
        return self.constant_s + density * sum(self.weight_s[name] * size for name, size in sizes.items())


@dataclass(frozen=True)
class Coefficients:
    """Measured on one kind of device for one model.

    Attributes:
        constant_s: of one local iteration.
        iteration_s: seconds per weight and local iteration, in layer order.
    """

    constant_s: float
    iteration_s: tuple[float, ...]

    def model(self, names: Sequence[str], *, iterations: int) -> TimeModel:
        """The time model for ``iterations`` local iterations per round.

        Raises:
            ConfigError: another number of prunable weights than coefficients.
        """
        if len(names) != len(self.iteration_s):
            raise ConfigError(
                [
                    f"$.method.time-model: {len(self.iteration_s)} coefficients for {len(names)} prunable layers "
                    f"({', '.join(names)}); give one per layer"
                ]
            )
        per_weight = [iterations * tau + SECONDS_PER_WEIGHT_SENT for tau in self.iteration_s]
        return TimeModel(iterations * self.constant_s, dict(zip(names, per_weight, strict=True)))


_RESNET18 = (
    *(0, 2.3405e-6, 1.00237e-5, 1.05606e-5, 4.2379e-6, 5.6713e-6, 2.1231e-6, 2.3288e-6, 6.7355e-7),
    *(6.6250e-6, 5.1375e-7, 1.9744e-7, 3.7032e-8, 9.9110e-7, 1.49665e-6, 7.4773e-7, 8.7225e-7, 6.1282e-6),
)
PRESETS: dict[str, Coefficients] = {
    "pi4-conv2": Coefficients(1.2492789765, (0, 7.098850e-6, 1.927325e-7, 1.782308e-7)),
    "pi4-vgg11": Coefficients(
        17.36990105989628,
        (
            *(0, 8.95507e-6, 2.495288e-6, 2.780686e-6, 1.024265e-6, 1.277773e-6, 1.843831e-6),
            *(8.066104e-7, 5.145334e-7, 2.430023e-7, 0),
        ),
    ),
    "android-resnet18": Coefficients(14.560097051459854 - sum(_RESNET18), _RESNET18),
}
"""Published measurements by name: Raspberry Pi 4 and a virtual Android phone."""


def read_time_model(read: Options, sizes: Mapping[str, int], iterations: int = 0) -> TimeModel:
    """The time model that a method's options give.

    - ``time-model``: a published one (``pi4-conv2``, ``pi4-vgg11``, ``android-resnet18``), or ``even``: every weight
      takes equal time, ``1 / weights`` of a round, beside a constant of one tenth.
    - ``constant-s`` and ``layer-s``: your own: seconds of a round at density 0, and per weight for every layer.
    - ``iterations``: local iterations the published coefficients are taken for; 5.

    Args:
        sizes: prunable weights, in layer order.
        iterations: in place of the option's; 0: the option's.

    Raises:
        ConfigError: coefficients for another number of layers.
    """
    preset = read.choice("time-model", ("even", *PRESETS), "even")
    given = read.integer("iterations", 5, low=1)
    constant, layers = read.number("constant-s", None, low=0), read.sequence("layer-s")
    if constant is not None or layers is not None:
        if constant is None or layers is None or len(layers) != len(sizes):
            raise ConfigError(
                [
                    f"$.method.layer-s: {len(layers or ())} values with constant-s {constant}; give constant-s and "
                    f"one value per prunable layer ({', '.join(sizes)})"
                ]
            )
        return TimeModel(constant, dict(zip(sizes, layers, strict=True)))
    if preset == "even":
        return TimeModel(0.1, dict.fromkeys(sizes, 1 / sum(sizes.values())))
    return PRESETS[preset].model(tuple(sizes), iterations=iterations or given)
