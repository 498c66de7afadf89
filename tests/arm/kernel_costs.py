"""The kernels alone as a program (native/kernel_costs.cpp), and what it costs: misses of a cache, instructions."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from edge.runtimes.executorch.build import KERNEL_FLAGS, SOURCES, wheel_headers
from tests.arm.userland import MEASURING_PACKAGES, Unavailable, install_system_packages

HERE = Path(__file__).parent / "native"
KERNELS = ("products.cpp", "matrix_product.cpp", "depthwise.cpp", "winograd.cpp", "threads.cpp")
LIKE_ARM = ("-march=x86-64-v2", "-DAPPORTION_LIKE_ARM")
"""A program for x86-64 with aarch64's vectors and tiles, so with its accesses to memory. It has half the registers:
some sums lie on the stack, which is always in the cache."""
CACHES = {"cortex-a53": "32768,4,64", "cortex-a72": "32768,2,64", "cortex-a76": "65536,4,64"}
"""First-level data caches: bytes, ways, bytes of a line. Source: Arm's technical reference manuals of these cores."""
SECOND_LEVEL = "524288,16,64"
TILE = 24 * 4
"""Multiply-adds of 24 vectors of four floats: those of a tile of 6 rows by 16 columns for one k."""


@dataclass(frozen=True)
class Convolution:
    """A part of one of a batch of square images, as many output as input channels, stride 1, padded to the same size.

    Attributes:
        part: ``forward``, ``input`` or ``weights``.
    """

    part: str
    images: int
    size: int
    channels: int
    kernel: int = 3

    @property
    def tiles(self) -> float:
        """Its multiply-adds in units of 24 vectors."""
        return self.images * self.size**2 * self.channels**2 * self.kernel**2 / TILE

    def words(self, times: int) -> list[str]:
        """Arguments of the program that does it so many times."""
        return [self.part, *map(str, (self.images, self.size, self.channels, self.kernel, times))]


def build(program: Path, wheel: Path, *, compiler: str, flags: Sequence[str]) -> Path:
    """The program, compiled with the session library's own flags.

    Args:
        wheel: executorch's package for the same processor.

    Raises:
        Unavailable: no such compiler.
    """
    if shutil.which(compiler) is None:
        raise Unavailable(f"{compiler} is not installed")
    libraries = wheel / "lib"
    command = [
        compiler, *KERNEL_FLAGS, *flags, *wheel_headers(wheel), f"-I{SOURCES}",
        str(HERE / "kernel_costs.cpp"), *(str(SOURCES / name) for name in KERNELS), "-o", str(program),
        f"-L{libraries}", f"-Wl,-rpath,{libraries}", "-Wl,--no-as-needed", "-lexecutorch",
        "-Wl,--allow-shlib-undefined",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return program


def misses(program: Path, work: Convolution, cache: str, folder: Path) -> float:
    """Misses of a first-level data cache, per 24 multiply-adds of a vector, when the work is done again.

    Raises:
        Unavailable: no valgrind.
    """
    valgrind = program_of("valgrind")

    def missed(times: int) -> int:
        caches = (f"--I1={CACHES['cortex-a53']}", f"--D1={cache}", f"--LL={SECOND_LEVEL}")
        out = f"--cachegrind-out-file={folder / 'cachegrind.out'}"
        command = [valgrind, "--tool=cachegrind", *caches, out, str(program), *work.words(times)]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
        (found,) = re.findall(r"D1 +misses: +([0-9,]+)", said)
        return int(found.replace(",", ""))

    return (missed(2) - missed(1)) / work.tiles


def instructions(command: Sequence[str], work: Convolution, folder: Path) -> float:
    """Instructions of an emulated program per 24 multiply-adds of a vector.

    Args:
        command: of an emulator that takes plugins, with the program, without its words.

    Raises:
        Unavailable: this emulator's plugins are others.
    """
    plugin = folder / "instruction_count.so"
    compile_ = ["gcc", "-O2", "-shared", "-fPIC", str(HERE / "instruction_count.c"), "-o", str(plugin)]
    subprocess.run(compile_, check=True, capture_output=True)

    def counted(times: int) -> int:
        whole = [command[0], "-plugin", str(plugin), *command[1:], *work.words(times)]
        said = subprocess.run(whole, capture_output=True, text=True)
        found = re.findall(r"^instructions: (\d+)$", said.stderr, re.MULTILINE)
        if not found:
            raise Unavailable(f"{command[0]} does not take this plugin: {said.stderr.strip()[-300:]}")
        return int(found[0])

    return (counted(2) - counted(1)) / work.tiles


def program_of(name: str) -> str:
    """``name``, installed where it is missing and can be.

    Raises:
        Unavailable: it is not.
    """
    install_system_packages({name: MEASURING_PACKAGES[name]})
    if shutil.which(name) is None:
        raise Unavailable(f"{name} is not installed (Debian: {MEASURING_PACKAGES[name]}) and nobody here is root")
    return name
