"""Windows of symbols cut into those that an artifact takes: a device may train on shorter ones than its data have."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from edge.contracts.manifest import ArtifactManifest
from edge.language.windows import IGNORED
from edge.training.local_data import LocalData

TASK = "next-token"


def in_windows(data: LocalData, manifest: ArtifactManifest) -> tuple[LocalData, np.ndarray | None]:
    """``data`` in the windows of ``manifest``, and the rows of those in which something counts; None: all of them.

    ``x`` and ``y`` [N, k L] become [k N, L], the same symbols in the same order, in views. What comes before a symbol
    is then known from its own window alone. Other data, and windows that are no multiple of the artifact's, stay as
    they are.
    """
    x, y, shape = data.x, data.y, manifest.input.shape
    if manifest.task != TASK or isinstance(x, tuple) or x.ndim != 2 or y.shape != x.shape or y.dtype.names:
        return data, None
    if len(shape) != 1 or x.shape[1] == shape[0] or x.shape[1] % shape[0]:
        return data, None
    cut = replace(data, x=x.reshape(-1, shape[0]), y=y.reshape(-1, shape[0]))
    counts = np.any(cut.y != IGNORED, axis=1)
    return cut, None if counts.all() else np.flatnonzero(counts)
