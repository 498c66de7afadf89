"""A step by micro-batches as the parity gate and the self-test run it: one program with the inputs of a whole batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from edge.contracts.tensors import GRADIENT_SUM
from edge.runtimes.micro_batches import ACCUMULATE, TRAIN, micro_batches
from export.features.run import FromFeatures, begun_at_features
from export.graph_session import GraphSession, SetOptions
from export.training_step import StepSpec


class ProgramRun(Protocol):
    """An opened program: every input by name in, every output by name out, hidden gradients included if asked for."""

    @property
    def outputs(self) -> Sequence[str]: ...

    def run(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]: ...


@dataclass(frozen=True)
class MicroBatched:
    """The two ONNX models of a step by micro-batches; ``set_options`` as of a :class:`GraphSession`."""

    accumulate: bytes
    train: bytes
    count: int
    set_options: SetOptions | None = None

    def opened(self) -> ProgramRun:
        """The step as one program; its outputs include the whole batch's gradients."""
        accumulate, train = (
            GraphSession(model, set_options=self.set_options) for model in (self.accumulate, self.train)
        )
        return _WholeBatch(accumulate, train, self.count)


class _WholeBatch:
    """Gives ``loss`` and ``correct`` of the whole batch, the new state, and ``grad:<parameter>``."""

    def __init__(self, accumulate: GraphSession, train: GraphSession, count: int) -> None:
        self._accumulate, self._train, self._count = accumulate, train, count
        self.outputs = [n for n in (*accumulate.outputs, *train.outputs) if not n.endswith(GRADIENT_SUM)]

    def run(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        values = dict(feeds)
        reported: dict[str, np.ndarray] = {}
        batched = self._accumulate.batched
        for part in micro_batches(feeds, batched, self._count):
            outputs = self._accumulate.run(values | {name: part[name] for name in batched})
            for name, value in outputs.items():
                if name.startswith("next:"):
                    values[name.removeprefix("next:")] = value
                else:
                    reported[name] = reported[name] + value if name in reported else value
        sums = {n.removesuffix(GRADIENT_SUM): v for n, v in values.items() if n.endswith(GRADIENT_SUM)}
        return reported | {f"grad:{n}": v for n, v in sums.items()} | self._train.run(values)


def in_parts(programs: Mapping[str, bytes], spec: StepSpec) -> dict[str, bytes | MicroBatched | FromFeatures]:
    """``programs`` (name -> ONNX model) with ``train`` and ``accumulate`` put together where there are both, and
    ``features`` before them."""
    opened: dict[str, bytes | MicroBatched | FromFeatures] = dict(programs)
    if spec.accumulates:
        opened[TRAIN] = MicroBatched(programs[ACCUMULATE], programs[TRAIN], spec.micro_batches)
        del opened[ACCUMULATE]
    return begun_at_features(opened, spec)


def micro_batch(spec: StepSpec, program: str) -> int | None:
    """The number of examples that ``program`` is to be run on; None when any will do.

    It is stated of ``train`` too, which takes none: agents that know no micro-batches refuse the order by it.
    """
    return spec.batch // spec.micro_batches if spec.accumulates and program in (ACCUMULATE, TRAIN) else None
