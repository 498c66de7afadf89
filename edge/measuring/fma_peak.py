"""What one core does at most in float32: multiply-adds per second of processor time.

A loop of independent multiply-adds on registers, compiled for this very machine, without memory and without a library.
It is the yardstick of a step's ``share_of_peak``; measured in the same run, because clocks differ from hour to hour.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from pathlib import Path

from edge.contracts.errors import DeviceRefused

_SOURCE = Path(__file__).parent / "native" / "fma_peak.cpp"
_DEFAULT_FLAGS = "-march=native"
_ROUNDS = 200_000
"""Of one measurement: a millisecond or two."""


class FmaPeak:
    """The compiled loop; the highest of all its measurements counts."""

    def __init__(self, folder: Path) -> None:
        """Compile it into ``folder`` (about a second), with ``CXX`` and ``APPORTION_NATIVE_FLAGS`` where they are set.

        Raises:
            DeviceRefused: no compiler, or it failed.
        """
        compiler = os.environ.get("CXX", "g++")
        if shutil.which(compiler) is None:
            raise DeviceRefused(f"no C++ compiler '{compiler}' to measure the peak with; install g++ or set CXX")
        library = folder / "fma_peak.so"
        flags = os.environ.get("APPORTION_NATIVE_FLAGS", _DEFAULT_FLAGS).split()
        command = [
            compiler, "-std=c++20", "-O3", *flags, "-ffp-contract=fast", "-Wno-psabi", "-fPIC", "-shared",
            str(_SOURCE), "-o", str(library),
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise DeviceRefused(f"{compiler} could not build {_SOURCE.name}: {done.stderr.strip()[-600:]}; set CXX")
        self._rate = ctypes.CDLL(str(library)).apportion_fma_rate
        self._rate.restype = ctypes.c_double
        self._rate.argtypes = [ctypes.c_int64, ctypes.c_float, ctypes.POINTER(ctypes.c_float)]
        self.macs_per_s = 0.0

    def measure(self, times: int = 5) -> float:
        """The highest rate found so far, multiply-adds per second of one core."""
        kept = ctypes.c_float(0.0)
        for _ in range(times):
            self.macs_per_s = max(self.macs_per_s, float(self._rate(_ROUNDS, 0.5, ctypes.byref(kept))))
        return self.macs_per_s
