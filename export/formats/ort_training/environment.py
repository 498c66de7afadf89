"""The child process that holds ONNX Runtime Training, seen from the exporter's side."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Mapping
from types import TracebackType

import numpy as np

from edge.contracts.errors import ConfigError
from edge.runtimes.environments import runtime_python
from export.formats.ort_training.child import Answer, Request, read_frame, write_frame

RUNTIME = "onnxruntime_training"
_HINT = "make runtime-onnxruntime-training"


class RequestFailed(Exception):
    """The child answered with a problem, or ended; the caller says whose it is."""


class RuntimeEnvironment:
    """A running child; a context manager that ends it.

    Raises:
        ConfigError: the runtime is not installed where trainers of it run.
    """

    def __init__(self) -> None:
        python = str(runtime_python(RUNTIME))
        try:
            self._child = subprocess.Popen(
                [python, "-m", "export.formats.ort_training.child"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
        except OSError as error:
            raise ConfigError([f"$.runtime: {python} does not start ({error})"], hint=_HINT) from error
        try:
            self._answer()
        except RequestFailed as error:
            self.close()
            raise ConfigError([f"$.runtime: {python} has no onnxruntime-training ({error})"], hint=_HINT) from error

    def __enter__(self) -> RuntimeEnvironment:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End the child."""
        for stream in (self._child.stdin, self._child.stdout, self._child.stderr):
            assert stream is not None
            with contextlib.suppress(OSError):
                stream.close()
        self._child.wait()

    def ask(self, request: Request, tensors: Mapping[str, np.ndarray] | None = None) -> dict[str, np.ndarray]:
        """The tensors that answer ``request``.

        Raises:
            RequestFailed: with the child's own words, or how it ended.
        """
        assert self._child.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # how it ended is in the answer
            write_frame(self._child.stdin, request, tensors or {})
        return self._answer()

    def _answer(self) -> dict[str, np.ndarray]:
        assert self._child.stdout is not None
        frame = read_frame(self._child.stdout, Answer)
        if frame is None:
            raise RequestFailed(f"ONNX Runtime Training ended with status {self._child.wait()}")
        answer, tensors = frame
        if answer.problem:
            raise RequestFailed(answer.problem)
        return tensors
