"""SCAFFOLD on a device: what is added to its gradients, and the control variate that its steps leave behind.

The server's variate c comes with the weights, the device's own c_i is in a file of the device. Nothing but the weights
goes back: what c_i changed by follows from them, c, the number of steps and the rate, all of which the server has.
Source: Karimireddy et al., "SCAFFOLD: Stochastic controlled averaging for federated learning" (ICML 2020), Algorithm 1,
option II.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol

import numpy as np

from edge.contracts.tensors import CONTROL, CORRECTION
from edge.runtimes.weights_file import WeightsFile


class Reads(Protocol):
    """A session, as far as its values are asked for."""

    def read(self, name: str) -> np.ndarray:
        """The present value of tensor ``name``."""


def next_variate(
    received: np.ndarray, trained: np.ndarray, correction: np.ndarray, *, steps: int, lr: float
) -> np.ndarray:
    """c_i+ = c_i - c + (x - y_i) / (K eta), float32: the mean of the device's own gradients over its steps.

    Args:
        received, trained: x and y_i.
        correction: c - c_i, as it was added to each of the ``steps``.
    """
    mean = np.subtract(received, trained, dtype=np.float64) / (steps * lr)
    return np.asarray((mean - correction).astype(np.float32))


class CorrectedWeights(WeightsFile):
    """An order's weights, and a tensor ``<name>#correction`` for each variate ``<name>#control`` among them.

    Args:
        own: file of the device's variates; None where it has none yet, which are zeros.
    """

    def __init__(self, path: Path, *, where: str, constants: Path | None = None, own: Path | None = None) -> None:
        super().__init__(path, where=where, constants=constants)
        self._own = None if own is None else WeightsFile(own, where=f"{where}, the device's own control variates")
        self._controls = {n.removesuffix(CONTROL) + CORRECTION: n for n in self._files if n.endswith(CONTROL)}

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._controls:
            return super().__getitem__(name)
        control = super().__getitem__(self._controls[name])
        mine = self._mine(name)
        return control if mine is None else control - mine

    def __contains__(self, name: object) -> bool:
        return name in self._controls or super().__contains__(name)

    def described(self, name: str) -> tuple[tuple[int, ...], np.dtype]:
        """As :meth:`WeightsFile.described`."""
        return super().described(self._controls.get(name, name))

    def copy_into(self, name: str, target: np.ndarray) -> None:
        """As :meth:`WeightsFile.copy_into`."""
        super().copy_into(self._controls.get(name, name), target)
        if name in self._controls and (mine := self._mine(name)) is not None:
            target -= mine

    def _mine(self, correction: str) -> np.ndarray | None:
        name = correction.removesuffix(CORRECTION)
        if self._own is None or name not in self._own:
            return None
        shape, dtype = self._own.described(name)
        return self._own[name] if (shape, dtype) == self.described(correction) else None


class NextVariates(Mapping[str, np.ndarray]):
    """The device's variates after ``steps`` steps at rate ``lr``, by parameter; each is made when it is asked for.

    Args:
        begun: what the steps began with.
        trained: what they ended with.
    """

    def __init__(self, begun: CorrectedWeights, trained: Reads, *, steps: int, lr: float) -> None:
        self._begun, self._trained, self._steps, self._lr = begun, trained, steps, lr
        self._names = [name.removesuffix(CORRECTION) for name in begun._controls]

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._names:
            raise KeyError(name)
        received, correction = self._begun[name], self._begun[name + CORRECTION]
        return next_variate(received, self._trained.read(name), correction, steps=self._steps, lr=self._lr)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)
