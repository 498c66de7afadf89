"""What the layers of a model contribute, as it was measured: a JSON file, read again by the method that chooses."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from coordinator.contributions.scheme import BLOCKS, Layer
from edge.contracts.errors import ConfigError

_WHERE = "$.method.contributions"


class LayerGain(msgspec.Struct, frozen=True):
    """What training one layer gains.

    Attributes:
        blocks: of its weight, by block of neighbouring output channels; one where channels are not chosen.
        biases: of all biases from this layer up, together.
    """

    blocks: tuple[float, ...] = ()
    biases: float = 0.0


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """The file.

    Attributes:
        measure: ``gradient`` or ``accuracy``, see :mod:`coordinator.contributions.measure`.
        model: class of the module.
        examples: how many it was measured on.
        layers: by path of the convolution or linear layer.
    """

    measure: str
    model: str
    examples: int
    layers: dict[str, LayerGain]


@dataclass(frozen=True)
class Contributions:
    """Gains by path; none of what is not named."""

    layers: Mapping[str, LayerGain]

    def of(self, path: str) -> LayerGain:
        """Of the layer at ``path``."""
        return self.layers.get(path, LayerGain())


def read_contributions(given: str | Mapping[str, float], layers: Collection[Layer]) -> Contributions:
    """The gains of a file, or of a table of gains by layer, spread evenly over its channels.

    Raises:
        ConfigError: the file cannot be read or is no such file; layers that the model does not have.
    """
    known = {layer.path: layer for layer in layers if layer.weight}
    if isinstance(given, str):
        try:
            found = dict(msgspec.json.decode(Path(given).read_bytes(), type=Measured).layers)
        except (OSError, msgspec.MsgspecError) as error:
            raise ConfigError(
                [f"{_WHERE}: {given} cannot be read ({error}); `apportion contributions` writes such a file"]
            ) from error
    else:
        counts = {path: block_count(known[path]) if path in known else 0 for path in given}
        found = {path: LayerGain(blocks=(gain / max(1, counts[path]),) * counts[path]) for path, gain in given.items()}
    unknown = sorted(found.keys() - known.keys())
    wrong = [p for p, gain in found.items() if p in known and len(gain.blocks) != block_count(known[p])]
    if unknown or wrong:
        what = "are no layers" if unknown else "have other channels"
        known_ones = ", ".join([*known][:8])
        raise ConfigError([f"{_WHERE}: {(unknown or wrong)[:3]} {what} of this model; it has {known_ones}"])
    return Contributions({path: _not_negative(gain) for path, gain in found.items()})


def block_count(layer: Layer) -> int:
    """Blocks that a layer's channels are chosen in."""
    return BLOCKS if len(layer.shares) > 1 else 1


def _not_negative(gain: LayerGain) -> LayerGain:
    return LayerGain(tuple(max(0.0, value) for value in gain.blocks), max(0.0, gain.biases))
