"""Inner loops of the kernels as the cross compiler makes them, and what LLVM's models of processors say of them."""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from edge.runtimes.executorch.build import KERNEL_FLAGS, SOURCES
from tests.arm.boards import FLAGS
from tests.arm.userland import COMPILER, MEASURING_PACKAGES, SYSTEM_PACKAGES, Unavailable, install_system_packages

DISASSEMBLER = "aarch64-linux-gnu-objdump"
ANALYSERS = ("llvm-mca-19", "llvm-mca")
TURNS = 200
"""Of a loop that are modelled: beginning and end then count for little."""
_STACK = re.compile(r"\[(sp|x29)\b")
_FUNCTION = re.compile(r"^[0-9a-f]+ <(.*)>:$")
_INSTRUCTION = re.compile(r"^\s+([0-9a-f]+):\t([^/]*)")
_JUMP = re.compile(r"^(?:b|b\.\w+|cbn?z|tbn?z)\s.*?\b([0-9a-f]+) <.*>$")


@dataclass(frozen=True)
class Loop:
    """One without a loop inside.

    Attributes:
        function: that it is in.
        instructions: of one turn, without addresses.
    """

    function: str
    instructions: tuple[str, ...]

    @property
    def fmlas(self) -> int:
        """Multiply-adds of a vector in a turn."""
        return sum(line.startswith("fmla") for line in self.instructions)

    @property
    def on_stack(self) -> tuple[str, ...]:
        """Instructions that reach into the stack: sums or addresses that have no register."""
        return tuple(line for line in self.instructions if _STACK.search(line))

    def per_cycle(self, core: str) -> float:
        """Multiply-adds of a vector per cycle on ``core``, when everything is in the first-level cache.

        Raises:
            Unavailable: no LLVM here, or one without a model of ``core``.
        """
        command = [analyser(), "-mtriple=aarch64-linux-gnu", f"-mcpu={core}", f"-iterations={TURNS}"]
        done = subprocess.run(command, input="\n".join(self.instructions), capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        (cycles,) = re.findall(r"^Total Cycles:\s+(\d+)$", done.stdout, re.MULTILINE)
        return TURNS * self.fmlas / int(cycles)


def loops_of_products(folder: Path) -> list[Loop]:
    """Loops of the products' files that do little but multiply and add, compiled for the boards into ``folder``.

    Raises:
        Unavailable: no cross compiler.
    """
    install_system_packages()
    if shutil.which(COMPILER) is None or shutil.which(DISASSEMBLER) is None:
        raise Unavailable(f"{COMPILER} is not installed (Debian: {SYSTEM_PACKAGES[COMPILER]}) and nobody here is root")
    found: dict[Loop, None] = {}
    for source in ("products.cpp", "matrix_product.cpp"):
        compiled = folder / f"{source}.o"
        subprocess.run([COMPILER, *KERNEL_FLAGS, FLAGS, "-c", SOURCES / source, "-o", compiled], check=True)
        listing = subprocess.run(
            [DISASSEMBLER, "-d", "-C", "--no-show-raw-insn", compiled], capture_output=True, text=True, check=True
        )
        found |= {loop: None for loop in inner_loops(listing.stdout) if 3 * loop.fmlas >= len(loop.instructions)}
    return list(found)  # a loop that was inlined in two places is one


def inner_loops(listing: str) -> Iterator[Loop]:
    """Of a disassembly, each from the target of a jump back to the jump."""
    function, addresses, lines, functions = "", dict[int, int](), list[str](), list[str]()
    for line in listing.splitlines():
        if match := _FUNCTION.match(line):
            function = match[1]
        elif match := _INSTRUCTION.match(line):
            addresses[int(match[1], 16)] = len(lines)
            lines.append(match[2].strip())
            functions.append(function)
    targets = [_target(line, addresses) for line in lines]
    for end, begin in enumerate(targets):
        if begin is None or begin > end or functions[begin] != functions[end]:
            continue
        inside = (t for i, t in enumerate(targets[begin:end], begin) if t is not None and begin <= t <= i)
        if next(inside, None) is None:
            turn = tuple(re.sub(r"[0-9a-f]+ <.*>$", ".L", line) for line in lines[begin : end + 1])
            yield Loop(functions[begin], turn)


def _target(line: str, addresses: dict[int, int]) -> int | None:
    """Place of the instruction that ``line`` jumps to."""
    match = _JUMP.match(line)
    return addresses.get(int(match[1], 16)) if match else None


@functools.cache
def analyser() -> str:
    """LLVM's program that models processors.

    Raises:
        Unavailable: there is none, and it cannot be installed.
    """
    install_system_packages({"llvm-mca-19": MEASURING_PACKAGES["llvm-mca-19"]})
    for name in ANALYSERS:
        if shutil.which(name):
            return name
    raise Unavailable(f"{ANALYSERS[0]} is not installed (Debian: {MEASURING_PACKAGES[ANALYSERS[0]]})")


@functools.cache
def version() -> int:
    """Of LLVM: 17 and later model Neoverse N1, whose core is Cortex-A76's."""
    said = subprocess.run([analyser(), "--version"], capture_output=True, text=True, check=True).stdout
    (found,) = re.findall(r"LLVM version (\d+)", said)
    return int(found)
