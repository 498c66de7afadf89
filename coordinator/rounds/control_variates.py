"""SCAFFOLD at the server: what it sends of its control variate, and how a round's updates change it.

What is kept is the sum over devices of w_i c_i, and each device's w_i: its examples in its first round, for the model
is a mean by examples, too. c is that sum over sum_i w_i N / n, for n devices that have taken part of N: the c_i of the
others are 0, and their examples are taken to be as many. With equal w_i this is the paper's c.
Source: Karimireddy et al., "SCAFFOLD: Stochastic controlled averaging for federated learning" (ICML 2020), Algorithm 1.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from coordinator.config.run_config import RunConfig
from coordinator.rounds.stage_tensors import apart
from coordinator.submodels.values import State, Submodel, Tensors
from edge.contracts.manifest import ArtifactManifest
from edge.contracts.tensors import CONTROL, CORRECTION

KEPT = "control-variates"
"""Under which its tensors are in a state."""
DEVICES = "devices"
"""int64 [n, 2]: a number made of the device's id, and w_i; rising."""
_SUM = "sum/"
_POPULATION = "population"
"""int64 [1]: N."""


def population(config: RunConfig) -> int:
    """N as far as the run file tells: devices started here, parts of the data, or devices of a round."""
    return max(config.cohort.local_devices, config.data.devices, config.cohort.size)


def corrected_names(manifest: ArtifactManifest) -> list[str]:
    """The parameters whose gradients the artifact's step corrects."""
    return [s.name.removesuffix(CORRECTION) for s in manifest.specs("teacher") if s.name.endswith(CORRECTION)]


def variates(kept: Tensors, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    """c of the parameters ``shapes``, float32; zeros before the first round.

    Args:
        kept: what a state has under :data:`KEPT`.
    """
    weight = _weight(kept[DEVICES], int(kept[_POPULATION][0])) if kept else 1.0
    sums = {name: kept.get(_SUM + name) for name in shapes}
    return {
        name: np.zeros(shapes[name], np.float32) if value is None else (value / weight).astype(np.float32)
        for name, value in sums.items()
    }


def with_variates(state: State, submodel: Submodel, manifest: ArtifactManifest) -> Submodel:
    """``submodel`` with c of every parameter that the artifact's step corrects; itself where it corrects none."""
    names = corrected_names(manifest)
    if not names:
        return submodel
    shapes = {name: tuple(submodel.tensors[name].shape) for name in names}
    found = variates(apart(state)[1].get(KEPT, {}), shapes)
    return replace(submodel, tensors={**submodel.tensors, **{name + CONTROL: c for name, c in found.items()}})


class RoundOfVariates:
    """What a round's updates say of their devices' gradients, added up.

    Args:
        kept: what the state before the round has under :data:`KEPT`.
    """

    def __init__(self, kept: Tensors, population: int) -> None:
        self._kept, self._population = kept, population
        self._weights = {int(number): int(weight) for number, weight in kept.get(DEVICES, ())}
        self._moved: dict[str, np.ndarray] = {}
        self._total = 0

    def add(self, device: str, examples: int, mean_gradients: Mapping[str, np.ndarray]) -> None:
        """Count a device.

        Args:
            mean_gradients: (x - y_i) / (K eta), float64: what its steps went by, its correction included.
        """
        weight = self._weights.setdefault(_number(device), examples)
        self._total += weight
        for name, gradient in mean_gradients.items():
            self._moved[name] = self._moved.get(name, 0.0) + weight * gradient

    def result(self) -> Tensors:
        """What the state after the round has: w_i c_i+ in place of w_i c_i, with c_i+ - c_i = (x - y_i)/(K eta) - c."""
        control = variates(self._kept, {name: value.shape for name, value in self._moved.items()})
        sums = {
            _SUM + name: (self._kept.get(_SUM + name, 0.0) + moved - self._total * control[name].astype(np.float64))
            for name, moved in self._moved.items()
        }
        return {
            **{name: value.astype(np.float32) for name, value in sums.items()},
            DEVICES: np.array(sorted(self._weights.items()), np.int64),
            _POPULATION: np.array([self._population], np.int64),
        }


def _weight(devices: np.ndarray, population: int) -> float:
    """sum_i w_i N / n, N at least n."""
    known = len(devices)
    return float(devices[:, 1].sum() * max(population, known) / known)


def _number(device: str) -> int:
    """The first 63 bits of the SHA-256 of the id."""
    return int.from_bytes(hashlib.sha256(device.encode()).digest()[:8], "big") >> 1
