"""A program of the ExecuTorch format as the parity gate runs it, by the device's own session."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from edge.contracts.manifest import Program
from edge.contracts.tensors import BATCH, GRADIENT_SUM, TensorSpec, concrete_shape, is_carried
from edge.runtimes.executorch.session import GRADIENT, ExecutorchSession
from edge.runtimes.micro_batches import ACCUMULATE, TRAIN, micro_batches


class GateRun:
    """Every value by name in, every value by name out."""

    def __init__(
        self,
        program: str,
        programs: Sequence[Program],
        tensors: Sequence[TensorSpec],
        files: Mapping[str, Path],
        *,
        batch: int,
        parts: int = 1,
    ) -> None:
        """Args: parts: micro-batches of a step of ``train``."""
        self._session = ExecutorchSession(programs, tensors, files, batch=batch)
        self._program = next(p for p in programs if p.name == program)
        self._parts = parts if program == TRAIN else 1
        roles = {t.name: t.role for t in tensors}
        self._batched = [t.name for t in tensors if t.shape[:1] == (BATCH,)]
        self._zeros = {t.name: np.zeros(concrete_shape(t), t.dtype) for t in tensors if is_carried(t)}
        read = [n for n in self._program.inputs if not n.endswith(GRADIENT_SUM)]
        self._written = [n for n in read if roles[n] in ("parameter", "slot", "accumulator")]
        self._trains = self._parts > 1 or any(o.name.startswith(GRADIENT) for o in self._program.outputs)
        moved = [f"next:{n}" for n in self._written] if self._trains else []
        self.outputs = [*(o.name for o in self._program.outputs), *moved]

    def run(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """One run from the state in ``feeds``: the program's outputs and, for a training step, the moved state."""
        # A program of a part is given that part alone.
        self._session.load_state({n: feeds.get(n, zero) for n, zero in self._zeros.items()})
        if self._parts > 1:
            outputs = self._summed(feeds)
        else:
            tensors = {o.name: o.tensor for o in self._program.outputs}
            given_back = self._session.outputs(self._program.name, {n: feeds[n] for n in self._program.inputs})
            outputs = {n: np.array(self._session.whole(tensors[n], v)) for n, v in given_back.items()}
        if self._trains:
            self._session.run(self._program.name, {n: feeds[n] for n in self._program.inputs})
            outputs |= {f"next:{n}": np.array(self._session.read(n)) for n in self._written}
        return outputs

    def _summed(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """What all micro-batches give together: loss, correct count, and the gradients, which the session keeps."""
        outputs: dict[str, np.ndarray] = {}
        for part in micro_batches(feeds, [n for n in self._batched if n in feeds], self._parts):
            for name, value in self._session.run(ACCUMULATE, part).items():
                outputs[name] = outputs.get(name, np.zeros(())) + value
        sums = [n for n in self._program.inputs if n.endswith(GRADIENT_SUM)]
        return outputs | {GRADIENT + n.removesuffix(GRADIENT_SUM): np.array(self._session.read(n)) for n in sums}
