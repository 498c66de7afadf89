"""Which training programs a device runs, batch by batch: the turns of an order's cyclic schedule."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edge.contracts.plan import Turn
from edge.contracts.streams import splitmix64, stream_seed

if TYPE_CHECKING:
    from coordinator.submodels.values import DeviceProgram

PROBE = "train_probe"
DRAWS = 256
"""Length of a drawn cycle; longer local training goes through it again."""


def training_turns(program: DeviceProgram, *, seed: int, round_index: int, device: str) -> tuple[Turn, ...]:
    """Turns of one device and round, as ``program.turns`` says.

    ``draw``: for every batch one of ``train`` and the variants, uniformly, from the stream (seed, "variant", round,
    device). ``each``: all variants on a batch, then the next batch.
    Source: FjORD, ordered dropout with a uniform distribution over the widths a device can train; Split-Mix.
    """
    if program.probe:
        # The cycle begins with the round's first batch; what runs later does not count.
        return (Turn(PROBE, advance_batch=False), *(Turn("train") for _ in range(DRAWS)))
    if program.turns == "train" or not program.variants:
        return (Turn("train"),)
    names = [f"train_{variant.name}" for variant in program.variants]
    if program.turns == "each":
        return tuple(Turn(name, advance_batch=name == names[-1]) for name in names)
    choices = ["train", *names]
    draws = splitmix64(stream_seed(seed, "variant", round_index, device), DRAWS) % len(choices)
    return tuple(Turn(choices[int(draw)]) for draw in draws)
