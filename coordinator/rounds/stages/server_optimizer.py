"""A step of the server's own, by what the devices' mean says of the direction: ``[server-optimizer]``."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from coordinator.config.run_config import RunConfig
from coordinator.exporting.cut_exporter import dense_module
from coordinator.methods.method import Method
from coordinator.rounds.federation import Federation, RoundStage
from coordinator.server_optimizers import server_optimizer
from coordinator.submodels.values import NotFinite, State, Tensors

KEPT = "server-optimizer"
"""Under which its tensors are in a state."""


class OptimizesMean(RoundStage):
    """In a run with a server optimizer. Trained tensors take its step; running statistics are the devices' mean.

    What a round's devices do not hold of a tensor has Delta 0 in that round, and moves by momentum alone.
    """

    def __init__(self) -> None:
        self._buffers: tuple[str, ...] | None = None

    @classmethod
    def is_used(cls, config: RunConfig) -> bool:
        """Whether the run asks for it."""
        return bool(config.server_optimizer.name)

    def aggregated(self, federation: Federation, before: State, mean: State, kept: dict[str, Tensors]) -> State:
        """The model one step from ``before``; see :meth:`RoundStage.aggregated`.

        Raises:
            NotFinite: the step leaves the numbers.
        """
        config = federation.config.server_optimizer
        optimizer, own = server_optimizer(config), kept.get(KEPT, {})
        moved, after = dict(mean.tensors), dict[str, np.ndarray]()
        for name in self._trained(federation, mean):
            old = np.asarray(before.tensors[name], np.float64)
            memory = optimizer.first(old.shape)
            memory = {key: np.asarray(own.get(f"{key}/{name}", first), np.float64) for key, first in memory.items()}
            with np.errstate(over="ignore", invalid="ignore"):
                new = old + optimizer.step(mean.tensors[name] - old, memory)
                moved[name] = new.astype(mean.tensors[name].dtype)
                after |= {f"{key}/{name}": value.astype(np.float32) for key, value in memory.items()}
            if not np.isfinite(moved[name]).all():
                raise NotFinite(
                    f"round {before.round + 1}: {config.name} with lr {config.lr:g} makes '{name}' not finite; lower "
                    "$.server-optimizer.lr"
                )
        kept[KEPT] = after
        return replace(mean, tensors=moved)

    def _trained(self, federation: Federation, state: State) -> list[str]:
        """The tensors that some device trains, in order."""
        if self._buffers is None:
            self._buffers = tuple(name for name, _ in dense_module(federation.config).named_buffers())
        frozen = _frozen_everywhere(federation.method)
        return [
            name
            for name, value in sorted(state.tensors.items())
            if value.dtype.kind == "f"
            and name not in frozen
            and not any(name == buffer or name.endswith(f".{buffer}") for buffer in self._buffers)
        ]


def _frozen_everywhere(method: Method) -> frozenset[str]:
    """What no level's devices train."""
    cuts = (method.cut_shape(level, round_index=0, device="", seed=0) for level in method.levels())
    return frozenset.intersection(*(frozenset(method.program(cut).frozen) for cut in cuts))
