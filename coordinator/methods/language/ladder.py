"""Capacity levels of a language model: how many components the factors of a device have, and in how many blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coordinator.submodels.lora import FORM, adapted_layers
from coordinator.submodels.record import Cut, Factor, LayerCut
from coordinator.submodels.values import Level
from edge.contracts.errors import ConfigError, PlanError

if TYPE_CHECKING:
    from coordinator.config.method_options import Options
    from export.language.causal_model import CausalModel

DEFAULT_RANKS = (2, 4, 8, 16)
BELOW = ("base", "factors")
"""What a device holds of the blocks below its depth: the base alone, or what was learnt there, too, frozen."""
HEAD = "head"
"""An untied head gets no factors: it is as large as the embedding, and nothing below needs its difference."""


class Ladder:
    """The levels of a method and the cut of each, largest first.

    Attributes:
        paths: of the layers that some level has factors beside, in module order.
        cuts: level -> records of the layers with factors; what is not named is frozen.
    """

    def __init__(self, module: CausalModel, read: Options) -> None:
        """Read ``levels``, ``depths``, ``below`` and ``layout``.

        Raises:
            ConfigError: impossible ones; PlanError: no layer can be adapted.
        """
        blocks = module.architecture.layers
        ranks = whole_numbers(read, "levels", DEFAULT_RANKS)
        depths = whole_numbers(read, "depths", (blocks,))
        holds_below = read.choice("below", BELOW, "base") == "factors"
        self.paths = adapted_layers(module, HEAD, read.names("layout"))
        largest = min(min(module.get_submodule(path).weight.shape) for path in self.paths)
        if ranks[0] > largest:
            raise PlanError(f"rank {ranks[0]}: an adapted layer's weight has only {largest}; lower $.method.levels")
        if depths[0] > blocks:
            raise ConfigError([f"$.method.depths: {depths[0]} given, the model has {blocks} blocks; give at most that"])
        self.cuts: dict[Level, Cut] = {}
        made = []
        for depth in depths:
            paths = [path for path in self.paths if block_of(path) >= blocks - depth]
            if not paths:
                raise ConfigError(
                    [f"$.method.depths: {depth} given, the layout has no layer in the last {depth} blocks; give more"]
                )
            for rank in ranks:
                name = f"rank {rank}" if len(depths) == 1 else f"rank {rank}, depth {depth}"
                level = Level(name, rank, rank * depth / (ranks[0] * depths[0]))
                factor = Factor(FORM, tuple(range(rank)))
                cut = {path: LayerCut(factor=factor, frozen=path not in paths) for path in self.paths}
                if not holds_below:
                    cut = {path: record for path, record in cut.items() if not record.frozen}
                made.append((level, depth, cut))
        for level, _, cut in sorted(made, key=lambda entry: (-entry[0].capacity, -entry[1])):
            self.cuts[level] = cut

    @property
    def largest_rank(self) -> int:
        """Of all levels."""
        return int(max(level.value for level in self.cuts))


def block_of(path: str) -> int:
    """The block that a layer ``blocks.N.<rest>`` is in."""
    return int(path.split(".")[1])


def whole_numbers(read: Options, key: str, default: tuple[int, ...]) -> list[int]:
    """Positive whole numbers, largest first."""
    given = read.numbers(key, default, low=1)
    if any(number != int(number) for number in given) or len(set(given)) != len(given):
        raise ConfigError([f"$.method.{key}: {list(given)} given, different whole numbers expected"])
    return sorted((int(number) for number in given), reverse=True)
