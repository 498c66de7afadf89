"""The session library through ctypes: loaded programs, their runs, and the optimizers' formulas on NumPy arrays."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import POINTER, c_char_p, c_double, c_float, c_int, c_int32, c_int64, c_void_p
from functools import cache
from pathlib import Path

import numpy as np

from edge.contracts.errors import DeviceRefused
from edge.runtimes.executorch.build import session_library

_SIGNATURES = {
    "apportion_open": (c_void_p, [c_char_p, POINTER(c_int)]),
    "apportion_close": (None, [c_void_p]),
    "apportion_error_name": (c_char_p, [c_int]),
    "apportion_has_kernel": (c_int, [c_char_p]),
    "apportion_inputs": (c_int64, [c_void_p]),
    "apportion_planned_bytes": (c_int64, [c_void_p]),
    "apportion_run": (
        c_int,
        [c_void_p, c_void_p, c_int64, POINTER(c_void_p), POINTER(c_int32), POINTER(c_int32), POINTER(c_int32)],
    ),
    "apportion_output": (c_void_p, [c_void_p, c_int64, POINTER(c_int64), POINTER(c_int32)]),
    "apportion_threads_open": (c_void_p, [c_int]),
    "apportion_threads_close": (None, [c_void_p]),
    "apportion_sgd": (None, [c_void_p] * 5 + [c_int64, c_float, c_float, c_float, c_int]),
    "apportion_adam": (
        None,
        [c_void_p] * 6 + [c_int64, c_double, c_float, c_float, c_float, c_float, c_float, c_int],
    ),
    "apportion_add_squares": (None, [c_void_p, c_void_p, c_int64]),
    "apportion_sum_of_squares": (c_double, [c_void_p, c_int64]),
    "apportion_keep": (None, [c_void_p, c_void_p, c_int64]),
    "apportion_crossover": (c_double, [c_int]),
    "apportion_places": (c_int64, [c_void_p, c_int64, c_int64, c_void_p, c_void_p, c_int64]),
    "apportion_scale": (None, [c_void_p, c_float, c_int64]),
}

_KINDS = {"float32": 0, "int64": 1, "bool": 2, "int32": 3}
"""Element types as the session library numbers them."""


@cache
def library() -> ctypes.CDLL:
    """The library of this environment, built if it is not there yet.

    Raises:
        DeviceRefused: it cannot be built or loaded.
    """
    path = session_library()
    try:
        loaded = ctypes.CDLL(str(path))
    except OSError as error:
        raise DeviceRefused(
            f"the executorch session {path} cannot be loaded: {error}; delete it to build it anew"
        ) from error
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(loaded, name)
        function.restype, function.argtypes = result, arguments
    return loaded


def has_kernel(name: str) -> bool:
    """Whether the runtime or this library has a kernel ``namespace::name.overload``."""
    return bool(library().apportion_has_kernel(name.encode()))


def crossovers() -> dict[str, float]:
    """Density below which a layer's step is faster with its kept entries alone, by kind of layer; measured now."""
    kinds = ("linear", "convolution")
    return {kind: round(min(1.0, library().apportion_crossover(i)), 2) for i, kind in enumerate(kinds)}


class NativeThreads:
    """The threads of a session's kernels; results are the same bits whatever their number."""

    def __init__(self, count: int) -> None:
        """Args: count: with the caller's own."""
        self._library = library()
        self.handle: int | None = self._library.apportion_threads_open(count - 1) if count > 1 else None

    def __del__(self) -> None:
        if getattr(self, "handle", None):
            self._library.apportion_threads_close(self.handle)
            self.handle = None


class NativeProgram:
    """One loaded program; its outputs are views into its arena that the next run overwrites."""

    def __init__(self, path: Path, threads: NativeThreads | None = None) -> None:
        """Args: threads: that it runs on; by default the caller's own alone."""
        self._library = library()
        self._threads = threads
        error = c_int(0)
        self._handle = self._library.apportion_open(str(path).encode(), ctypes.byref(error))
        if not self._handle:
            raise DeviceRefused(
                f"executorch cannot load {path.name}: {self._error(error.value)}; it is damaged or for another release"
            )
        self.inputs = int(self._library.apportion_inputs(self._handle))
        self.planned_bytes = int(self._library.apportion_planned_bytes(self._handle))

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self._library.apportion_close(self._handle)
            self._handle = None

    def run(self, inputs: Sequence[np.ndarray]) -> None:
        """One execution on C-contiguous arrays of the types in ``_KINDS``, read where they lie.

        Raises:
            DeviceRefused: a wrong count, or the runtime's own error by name.
        """
        if len(inputs) != self.inputs:
            raise DeviceRefused(
                f"the program takes {self.inputs} inputs, {len(inputs)} given; export the artifact again"
            )
        sizes = [size for array in inputs for size in array.shape]
        count = len(inputs)
        status = self._library.apportion_run(
            self._handle,
            self._threads.handle if self._threads else None,
            count,
            (c_void_p * count)(*(array.ctypes.data for array in inputs)),
            (c_int32 * count)(*(_KINDS[array.dtype.name] for array in inputs)),
            (c_int32 * count)(*(array.ndim for array in inputs)),
            (c_int32 * max(1, len(sizes)))(*sizes),
        )
        if status != 0:
            name = self._error(status)
            step = "lower the batch size" if "Memory" in name or "Resources" in name else "export the artifact again"
            raise DeviceRefused(f"executorch failed in mid-step: {name}; {step}")

    def output(self, index: int, shape: tuple[int, ...]) -> np.ndarray:
        """Output ``index`` of the last run, as ``shape`` with at most one -1."""
        count, is_integer = c_int64(0), c_int32(0)
        address = self._library.apportion_output(self._handle, index, ctypes.byref(count), ctypes.byref(is_integer))
        if not address:
            raise DeviceRefused(f"the program gives no output {index}; export the artifact again")
        kind = c_int64 if is_integer.value else c_float
        return np.ctypeslib.as_array(ctypes.cast(address, POINTER(kind)), (count.value,)).reshape(shape)

    def _error(self, status: int) -> str:
        return str(self._library.apportion_error_name(status).decode())
