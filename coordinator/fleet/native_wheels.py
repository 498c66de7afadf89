"""What a device needs of a runtime with a session library of ours: that, and the few libraries of the wheel it uses.

Headers, tools and other backends may be most of a wheel. The session library is compiled here, by a cross compiler for
another processor, and finds the wheel's libraries from its own place, wherever the environment is.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import tempfile
import zipfile
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, cast

from coordinator.fleet.device_wheel import write_wheel
from coordinator.fleet.facts import HostFacts
from coordinator.fleet.host import HostUnfit
from edge.contracts.errors import ApportionError, DeviceRefused
from edge.runtimes import DEFAULT, traits_of

if TYPE_CHECKING:
    from edge.runtimes.base import NativeBuild

FLAGS = {"aarch64": ("-mcpu=cortex-a53",), "x86_64": ("-march=x86-64-v2",)}
"""For the oldest processors in use, so that one library serves every host; a host's own compiler makes a faster one."""

PLACE = "lib/apportion"
_INFO = re.compile(r"[^/]+\.dist-info/(?!RECORD).+")
_GLIBC = re.compile(rb"GLIBC_2\.(\d+)\b")


class CompilerMissing(ApportionError):
    """The session library for the host's processor cannot be compiled here."""

    code = "no-compiler"
    exit_code = 1


def native_build(runtime: str) -> NativeBuild | None:
    """What compiles the session library of ``runtime``, if it has one."""
    module = traits_of(runtime).native_build
    return cast("NativeBuild", import_module(module)) if module else None


def slim_wheel(build: NativeBuild, whole: Path, folder: Path) -> Path:
    """The wheel ``whole`` with what a device loads of it, in ``folder``."""
    with zipfile.ZipFile(whole) as archive:
        kept = [name for name in archive.namelist() if name in build.LOADED or _INFO.fullmatch(name)]
        files = {name: archive.read(name) for name in kept}
    return write_wheel(folder / whole.name, files)


def portable_library(build: NativeBuild, whole: Path, facts: HostFacts, folder: Path) -> Path:
    """The session library for the host, in ``folder``, compiled when it is not there yet (half a minute).

    Args:
        whole: the runtime's wheel for the host, with its headers.

    Raises:
        CompilerMissing: there is no compiler for the host's processor here, or it failed.
        HostUnfit: what it makes needs a newer glibc than the host has.
    """
    if facts.python is None:
        raise HostUnfit("it has no Python that can be used")
    library = folder / build.portable_name(whole.name.split("-")[1])
    if not library.exists():
        compiler = compiler_for(build, facts.machine)
        python = "python{}.{}".format(*facts.python.version)
        with tempfile.TemporaryDirectory(dir=folder) as unpacked:
            with zipfile.ZipFile(whole) as archive:
                kept = [
                    n
                    for n in archive.namelist()
                    if n.startswith((f"{build.PACKAGE}/include/", f"{build.PACKAGE}/lib/"))
                ]
                archive.extractall(unpacked, kept)
            try:
                build.compile_library(
                    Path(unpacked) / build.PACKAGE,
                    library,
                    compiler=compiler,
                    flags=FLAGS[facts.machine],
                    search=f"$ORIGIN/../{python}/site-packages/{build.PACKAGE}/lib",
                )
            except DeviceRefused as error:
                raise CompilerMissing(f"{error}", hint=f"use the runtime {DEFAULT} on this host") from error
    needed = max((int(minor) for minor in _GLIBC.findall(library.read_bytes())), default=0)
    if (2, needed) > facts.libc_version:
        found = ".".join(map(str, facts.libc_version))
        raise HostUnfit(
            f"its C library is glibc {found}, and the {build.PACKAGE} session compiled here needs 2.{needed}",
            hint=f"use the runtime {DEFAULT} on it, or upgrade its system",
        )
    return library


def compiler_for(build: NativeBuild, machine: str) -> str:
    """The C++ compiler for ``machine``: ``CXX``, this machine's own, or Debian's cross compiler.

    Raises:
        CompilerMissing: it is not installed.
    """
    own = machine == platform.machine()
    compiler = os.environ.get("CXX") or ("g++" if own else f"{machine.replace('_', '-')}-linux-gnu-g++")
    if shutil.which(compiler) is None:
        package = "g++" if own else f"g++-{machine.replace('_', '-')}-linux-gnu"
        raise CompilerMissing(
            f"there is no {compiler} here to compile the {build.PACKAGE} session for {machine} with",
            hint=f"install it (Debian: sudo apt install {package}), or use the runtime {DEFAULT}",
        )
    return compiler
