"""A trained update as it is sent in fewer bits, and what rounding left over for the next one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from edge.contracts.manifest import ArtifactManifest
from edge.contracts.packing import KEPT
from edge.contracts.plan import WorkOrder
from edge.contracts.precision import SCALE, decoded, encoded, is_coded, scales_of


class CodedUpdate(Mapping[str, np.ndarray]):
    """The tensors of an update by the names they travel under; each is made when it is asked for and not kept.

    Args:
        trained: the present value of a tensor of ``order.upload``.
        received: the order's weights.
        left_over: what earlier updates of the same cut lost to rounding; may be empty.
    """

    def __init__(
        self,
        order: WorkOrder,
        manifest: ArtifactManifest,
        trained: Callable[[str], np.ndarray],
        received: Mapping[str, np.ndarray],
        left_over: Mapping[str, np.ndarray],
    ) -> None:
        self._precision = order.precision
        self._trained = trained
        self._received = received
        self._left_over = left_over
        self.coded = [name for name in order.upload if is_coded(manifest.tensor(name.removesuffix(KEPT)))]
        scales = [name + SCALE for name in self.coded] if order.precision == "int8" else []
        self._names = [*order.upload, *scales]

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._names:
            raise KeyError(name)
        if name in self.coded:
            return encoded(self._difference(name), self._precision)
        if name.endswith(SCALE):
            return scales_of(self._difference(name.removesuffix(SCALE)))
        return self._trained(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def _difference(self, name: str) -> np.ndarray:
        difference: np.ndarray = self._trained(name) - self._received[name]
        before = self._left_over.get(name)
        # A file of another cut never comes here; one of another shape could only be damaged.
        return difference + before if before is not None and before.shape == difference.shape else difference


class LeftOver(Mapping[str, np.ndarray]):
    """What :class:`CodedUpdate` loses to rounding, tensor by tensor, made when asked for."""

    def __init__(self, update: CodedUpdate) -> None:
        self._update = update

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._update.coded:
            raise KeyError(name)
        scales = self._update.get(name + SCALE)
        lost: np.ndarray = self._update._difference(name) - decoded(self._update[name], scales)
        return lost

    def __iter__(self) -> Iterator[str]:
        return iter(self._update.coded)

    def __len__(self) -> int:
        return len(self._update.coded)
