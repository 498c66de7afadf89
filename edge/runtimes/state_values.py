"""How a session's state takes its values from what an order brought; the same for every runtime."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from edge.contracts.errors import ArtifactCorrupt
from edge.contracts.tensors import TEACHER, TensorSpec
from edge.runtimes.weights_file import WeightsFile


def load_value(spec: TensorSpec, target: np.ndarray, tensors: Mapping[str, np.ndarray]) -> None:
    """Fill ``target`` with the value of ``spec``; slots and accumulators that did not come become zero.

    A teacher's tensor is the received value of the tensor it is named after, unless one is there for it.

    Raises:
        ArtifactCorrupt: it is missing, or has another shape or dtype.
    """
    name = spec.name.removesuffix(TEACHER) if spec.role == "teacher" and spec.name not in tensors else spec.name
    if name not in tensors:
        if spec.role not in ("slot", "accumulator"):
            raise ArtifactCorrupt(f"the weights hold no {spec.role} '{name}' that the artifact needs; order again")
        target.fill(0)
        return
    if isinstance(tensors, WeightsFile):
        shape, dtype = tensors.described(name)
    else:
        shape, dtype = tensors[name].shape, tensors[name].dtype
    if tuple(shape) != target.shape or dtype != target.dtype:
        raise ArtifactCorrupt(
            f"weights: '{name}' is {dtype}{list(shape)}, the artifact says {target.dtype}{list(target.shape)}; "
            "order again"
        )
    if isinstance(tensors, WeightsFile):
        tensors.copy_into(name, target)
    else:
        np.copyto(target, tensors[name])
