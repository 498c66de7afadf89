"""A program of this format as the parity gate runs it: in the runtime's own environment, by the device's session."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from edge.contracts.errors import ParityError
from edge.contracts.manifest import Program
from edge.contracts.tensors import TensorSpec
from export.formats.ort_training.child import Open, Run
from export.formats.ort_training.environment import RequestFailed, RuntimeEnvironment

_MOVED = ("parameter", "slot", "accumulator")


class GateRun:
    """Every value by name in, every value by name out: :class:`export.parity.ProgramRun`.

    Raises:
        ParityError: the artifact does not load.
    """

    def __init__(
        self,
        environment: RuntimeEnvironment,
        folder: Path,
        programs: Sequence[Program],
        tensors: Sequence[TensorSpec],
        name: str,
    ) -> None:
        self._environment = environment
        self._program = next(p for p in programs if p.name == name)
        self._tensors = [t.name for t in tensors if t.role not in ("loss", "metric")]
        self._ask(Open(str(folder), tuple(programs), tuple(tensors)), {})
        trains = any(output.name.startswith("grad:") for output in self._program.outputs)
        moved = [t.name for t in tensors if t.role in _MOVED and t.name in self._program.inputs] if trains else []
        self.outputs = [*(o.name for o in self._program.outputs), *(f"next:{n}" for n in moved)]

    def run(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """One run from the state in ``feeds``: the program's outputs and, after training, the moved state."""
        return self._ask(Run(self._program.name), feeds)

    def run_optimizer_model(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The same with the artifact's optimizer model in place of the agent's rule."""
        return self._ask(Run(self._program.name, optimizer_model=True), feeds)

    def _ask(self, request: Open | Run, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        given = {n: np.asarray(feeds[n]) for n in self._tensors if n in feeds}
        try:
            return self._environment.ask(request, given)
        except RequestFailed as error:
            raise ParityError(f"the artifact does not run ({error}); it is wrong, do not use it") from error
