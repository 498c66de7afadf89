"""What a device needs of executorch: the wheel's C++ libraries without the rest of it, and our session library.

The wheel holds tools for other backends, models and headers, 50 of its 63 MB (1.5.1, aarch64); a device loads three
libraries. The session library (:mod:`edge.native`) is compiled here, by a cross compiler for another processor, and
finds the wheel's libraries from its own place, wherever the environment is.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import tempfile
import zipfile
from pathlib import Path

from coordinator.fleet.device_wheel import write_wheel
from coordinator.fleet.facts import HostFacts
from coordinator.fleet.host import HostUnfit
from edge.contracts.errors import ApportionError, DeviceRefused
from edge.native.build import compile_library, portable_name

FLAGS = {"aarch64": ("-mcpu=cortex-a53",), "x86_64": ("-march=x86-64-v2",)}
"""For the oldest processors in use, so that one library serves every host; a host's own compiler makes a faster one."""

PLACE = "lib/apportion"
_KEPT = re.compile(r"executorch/lib/libexecutorch(?:_kernels_optimized|_threadpool)?\.so|[^/]+\.dist-info/(?!RECORD).+")
_GLIBC = re.compile(rb"GLIBC_2\.(\d+)\b")


class CompilerMissing(ApportionError):
    """The session library for the host's processor cannot be compiled here."""

    code = "no-compiler"
    exit_code = 1


def slim_wheel(whole: Path, folder: Path) -> Path:
    """The wheel ``whole`` with what a device loads of it, in ``folder``."""
    with zipfile.ZipFile(whole) as archive:
        files = {name: archive.read(name) for name in archive.namelist() if _KEPT.fullmatch(name)}
    return write_wheel(folder / whole.name, files)


def portable_library(whole: Path, facts: HostFacts, folder: Path) -> Path:
    """The session library for the host, in ``folder``, compiled when it is not there yet (half a minute).

    Args:
        whole: the executorch wheel for the host, with its headers.

    Raises:
        CompilerMissing: there is no compiler for the host's processor here, or it failed.
        HostUnfit: what it makes needs a newer glibc than the host has.
    """
    if facts.python is None:
        raise HostUnfit("it has no Python that can be used")
    library = folder / portable_name(whole.name.split("-")[1])
    if not library.exists():
        compiler = compiler_for(facts.machine)
        python = "python{}.{}".format(*facts.python.version)
        with tempfile.TemporaryDirectory(dir=folder) as unpacked:
            with zipfile.ZipFile(whole) as archive:
                kept = [n for n in archive.namelist() if n.startswith(("executorch/include/", "executorch/lib/"))]
                archive.extractall(unpacked, kept)
            try:
                compile_library(
                    Path(unpacked) / "executorch",
                    library,
                    compiler=compiler,
                    flags=FLAGS[facts.machine],
                    search=f"$ORIGIN/../{python}/site-packages/executorch/lib",
                )
            except DeviceRefused as error:
                raise CompilerMissing(f"{error}", hint="use the runtime onnxruntime on this host") from error
    needed = max((int(minor) for minor in _GLIBC.findall(library.read_bytes())), default=0)
    if (2, needed) > facts.libc_version:
        found = ".".join(map(str, facts.libc_version))
        raise HostUnfit(
            f"its C library is glibc {found}, and the executorch session compiled here needs 2.{needed}",
            hint="use the runtime onnxruntime on it, or upgrade its system",
        )
    return library


def compiler_for(machine: str) -> str:
    """The C++ compiler for ``machine``: ``CXX``, this machine's own, or Debian's cross compiler.

    Raises:
        CompilerMissing: it is not installed.
    """
    own = machine == platform.machine()
    compiler = os.environ.get("CXX") or ("g++" if own else f"{machine.replace('_', '-')}-linux-gnu-g++")
    if shutil.which(compiler) is None:
        package = "g++" if own else f"g++-{machine.replace('_', '-')}-linux-gnu"
        raise CompilerMissing(
            f"there is no {compiler} here to compile the executorch session for {machine} with",
            hint=f"install it (Debian: sudo apt install {package}), or use the runtime onnxruntime",
        )
    return compiler
