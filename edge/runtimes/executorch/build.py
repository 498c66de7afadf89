"""``python -m edge.runtimes.executorch.build``: the session library, compiled against the wheel of this environment,
and the trainer without Python beside it.

Needs a C++20 compiler (``CXX``, default g++) and no torch. ``APPORTION_NATIVE_FLAGS`` replaces ``-march=native``, which
makes a library for this very machine. The library lies in the environment, named by the digest of its sources and of
what is installed of the wheel, so a new release of this package or of the wheel builds a new one.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from edge.contracts.errors import DeviceRefused
from edge.runtimes.executorch.installed import (
    PACKAGE,
    PORTABLE,
    SOURCES,
    TRAINER_SOURCES,
    library_folder,
    library_name,
    native_flags,
    portable_name,
    trainer_of,
)

log = logging.getLogger("apportion.trainer")

_LIBRARIES = ("executorch", "executorch_kernels_optimized", "executorch_threadpool")
LOADED = frozenset(f"{PACKAGE}/lib/lib{name}.so" for name in _LIBRARIES)
"""Of the wheel's 63 MB (1.5.1, aarch64) 13: the rest is tools for other backends, models and headers."""
_ONE_ROUNDING = ("--param=avoid-fma-max-bits=0",)
"""Every sum of a product rounds once: for some processors GCC would split those in a chain, and give other bits."""
KERNEL_FLAGS = ("-std=c++20", "-O3", "-ffp-contract=fast", "-fno-math-errno", "-Wno-psabi", *_ONE_ROUNDING, "-fPIC")
"""What the kernels are compiled with on every processor."""


def session_library() -> Path:
    """The library for this environment, compiled if it is not there yet (about half a minute).

    One that was compiled elsewhere and came with the environment, as on a provisioned device, is taken as it is.

    Raises:
        DeviceRefused: no executorch wheel here, no compiler, or it failed.
    """
    wheel, folder = wheel_folder(), library_folder(Path(sys.prefix))
    brought = folder / portable_name(version(PACKAGE))
    if brought.exists():
        return brought
    library = folder / library_name(wheel)
    if not library.exists():
        compiler, search = os.environ.get("CXX", "g++"), str(wheel / "lib")
        compile_library(wheel, library, compiler=compiler, flags=native_flags(), search=search)
    return library


def trainer_program(library: Path) -> Path | None:
    """The trainer without Python for ``library``, compiled in seconds if it is not there; None where it cannot be."""
    found = trainer_of(library)
    if not found.is_file() and not library.name.endswith(PORTABLE):
        wheel = wheel_folder()
        compiler = os.environ.get("CXX", "g++")
        _compile_trainer(wheel, library, found, compiler=compiler, search=str(wheel / "lib"))
    return found if found.is_file() else None


def wheel_folder() -> Path:
    """Folder of the installed executorch package, found without importing it (its Python part imports torch).

    Raises:
        DeviceRefused: it is not installed.
    """
    found = importlib.util.find_spec("executorch")
    folders = list(found.submodule_search_locations or []) if found else []
    for folder in folders:
        if (Path(folder) / "lib" / "libexecutorch.so").exists():
            return Path(folder)
    raise DeviceRefused("the executorch wheel is not installed here; run `make runtime-executorch`")


def compile_library(wheel: Path, library: Path, *, compiler: str, flags: Sequence[str], search: str) -> None:
    """As :meth:`edge.runtimes.base.NativeBuild.compile_library`."""
    if shutil.which(compiler) is None:
        raise DeviceRefused(
            f"no C++ compiler '{compiler}' to build the executorch session with; install g++ or set CXX"
        )
    library.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        unfinished = Path(folder) / library.name
        command = [
            compiler, *KERNEL_FLAGS, *flags, "-shared", *wheel_headers(wheel),
            *map(str, sorted(SOURCES.glob("*.cpp"))), "-o", str(unfinished),
            f"-L{wheel / 'lib'}", f"-Wl,-rpath,{search}", "-Wl,--no-as-needed",
            *(f"-l{name}" for name in _LIBRARIES),
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise DeviceRefused(
                f"{compiler} could not build the executorch session: {done.stderr.strip()[-600:]}; "
                "a C++20 compiler (g++ 11 or newer) is needed"
            )
        os.replace(unfinished, library)
    _compile_trainer(wheel, library, trainer_of(library), compiler=compiler, search=search)


def wheel_headers(wheel: Path) -> tuple[str, ...]:
    """What tells a compiler of the wheel's headers."""
    include = wheel / "include"
    c10 = include / "executorch/runtime/core/portable_type/c10"
    return ("-DC10_USING_CUSTOM_GENERATED_MACROS", f"-I{include}", f"-I{c10}")


def _compile_trainer(wheel: Path, library: Path, trainer: Path, *, compiler: str, search: str) -> None:
    """Compile ``trainer`` beside ``library``; where that fails, the Python trainer does all the work.

    It computes as NumPy does, no product is added to before it is rounded; the kernels are the library's.
    """
    if shutil.which(compiler) is None:
        return
    unfinished = trainer.with_suffix(f".{os.getpid()}")
    command = [
        compiler, "-std=c++20", "-O2", "-ffp-contract=off", "-Wno-psabi", "-pthread",
        *map(str, sorted(TRAINER_SOURCES.glob("*.cpp"))), "-o", str(unfinished),
        f"-L{library.parent}", f"-l:{library.name}", f"-Wl,-rpath,$ORIGIN:{search}",
        f"-Wl,-rpath-link,{wheel / 'lib'}", "-Wl,--allow-shlib-undefined", "-ldl",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        os.replace(unfinished, trainer)
    else:
        log.warning("%s could not build the trainer without Python: %s", compiler, done.stderr.strip()[-600:])


__all__ = ["LOADED", "PACKAGE", "SOURCES", "compile_library", "portable_name", "session_library", "trainer_program"]

if __name__ == "__main__":
    built = session_library()
    trainer_program(built)
    print(built)
