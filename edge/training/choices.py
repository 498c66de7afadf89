"""A device's questions by an artifact's program: the program's summed cross-entropy of one choice after the other.

One choice at a time is what the program's sums can tell apart, and takes the memory of one window.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from edge.contracts.errors import DataError
from edge.contracts.evaluation import OPTIONAL
from edge.contracts.manifest import ArtifactManifest
from edge.language.questions import ChoiceWindows, choice_sums
from edge.training.batches import Examples
from edge.training.local_data import LocalData

ENTROPY = "sum:entropy"


def score_choices(
    windows: ChoiceWindows,
    manifest: ArtifactManifest,
    run: Callable[[np.ndarray, np.ndarray], Mapping[str, float]],
) -> dict[str, float]:
    """Sums over the questions, by the names of a task's sums.

    Args:
        run: the scalars that a program gives for inputs [1, T] and what is beside them.

    Raises:
        DataError: windows that are not the artifact's, or a program that tells no cross-entropy of its symbols.
    """
    examples = Examples(LocalData(windows.where, windows.x, windows.y), manifest)
    entropy = np.zeros(len(examples))
    for row in range(len(examples)):
        found = run(*examples.batch(np.array([row]), None))
        if ENTROPY not in found:
            raise DataError(
                f"{windows.where}: questions are of models that predict the next symbol, task '{manifest.task}' tells "
                "no cross-entropy of it; take choices out of data.toml"
            )
        entropy[row] = found[ENTROPY]
    return dict(zip(OPTIONAL, choice_sums(windows, entropy).values(), strict=True))
