"""Inference models on ExecuTorch: a program with its weights inside, run by the session library; no torch."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from edge.contracts.errors import DeviceRefused
from edge.runtimes.executorch.library import NativeProgram, NativeThreads
from edge.runtimes.executorch.session import version

AT_ONCE = 32
"""Most examples of a run: what the programs are planned for, and their arena is for as many."""


def load(path: Path, minimum_version: str, *, threads: int) -> ExecutorchInference:
    """The model at ``path``, run on ``threads``.

    Raises:
        DeviceRefused: the runtime is of another release than ``minimum_version``, or cannot load the program.
    """
    if version() != minimum_version:
        raise DeviceRefused(
            f"the model is for executorch {minimum_version}, {version()} is installed; install that release"
        )
    return ExecutorchInference(path, threads)


class ExecutorchInference:
    """Implements :class:`edge.inference.predictor.InferenceSession`; logits are flat, [B, values of one example]."""

    def __init__(self, path: Path, threads: int = 1) -> None:
        self._program = NativeProgram(path, NativeThreads(threads))

    def logits(self, inputs: np.ndarray) -> np.ndarray:
        """As :meth:`edge.inference.predictor.InferenceSession.logits`."""
        found = []
        for start in range(0, len(inputs), AT_ONCE):
            part = np.ascontiguousarray(inputs[start : start + AT_ONCE])
            self._program.run([part])
            found.append(np.array(self._program.output(0, (len(part), -1))))
        return np.concatenate(found)
