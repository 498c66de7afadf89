"""Boards as an emulator shows them to a program: the processor, and the files by which programs tell what it is."""

from __future__ import annotations

import os
import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.arm.userland import EMULATOR, Userland

FLAGS = "-mcpu=cortex-a53"
"""What the session library is compiled for: the oldest of the boards, so that one library serves all."""

PATIENCE_S = 600.0
"""A program on a device that takes longer hangs: none takes 30 s on an idle machine."""


@dataclass(frozen=True)
class Board:
    """One kind of board.

    Attributes:
        processor: the emulator's name of its cores.
        part: their number in ``/proc/cpuinfo``.
        model: what the kernel calls the board.
    """

    processor: str
    part: str
    model: str


BOARDS = (
    Board("cortex-a53", "0xd03", "Raspberry Pi 3 Model B Plus Rev 1.3"),
    Board("cortex-a72", "0xd08", "Raspberry Pi 4 Model B Rev 1.4"),
)


class EmulatedDevice:
    """A board with the userland on its disk. Its programs see this machine's other files, network and memory."""

    def __init__(self, board: Board, userland: Userland) -> None:
        self.board = board
        self._userland = userland
        self._sysroot = userland.root.parent / board.processor
        _write_sysroot(self._sysroot, userland.root, board)

    def command(self, *arguments: str) -> list[str]:
        """Python on the device with ``arguments``."""
        emulator = [EMULATOR, "-cpu", self.board.processor, "-L", str(self._sysroot)]
        return [*emulator, str(self._userland.python), *arguments]

    def environment(self, **variables: str) -> dict[str, str]:
        """Nothing of this machine's own environment but the search path."""
        return {"PATH": os.environ["PATH"], "LANG": "C.UTF-8", "APPORTION_NATIVE_FLAGS": FLAGS, **variables}

    def run(self, *arguments: str) -> str:
        """What a program on the device prints; raises with its stderr when it fails."""
        done = subprocess.run(
            self.command(*arguments), env=self.environment(), capture_output=True, text=True, timeout=PATIENCE_S
        )
        assert done.returncode == 0, f"exit status {done.returncode}: {done.stderr[-2000:]}"
        return done.stdout

    def interpreter(self, folder: Path) -> Path:
        """A file that the agent can start as its trainer's Python.

        An emulated program starts other programs through this machine's kernel, which cannot run aarch64 ones.
        """
        path = folder / "python"
        path.write_text(f'#!/bin/sh\nexec {shlex.join(self.command())} "$@"\n')
        path.chmod(0o755)
        return path


def _write_sysroot(sysroot: Path, root: Path, board: Board) -> None:
    """Where the emulator looks absolute paths up first: the userland's folders and the board's own ``/proc``."""
    (sysroot / "proc/device-tree").mkdir(parents=True, exist_ok=True)
    for entry in root.iterdir():
        if not (sysroot / entry.name).is_symlink():
            (sysroot / entry.name).symlink_to(Path("..") / root.name / entry.name)
    # Without this file onnxruntime dies while it is imported: this machine's own has another form.
    (sysroot / "proc/cpuinfo").write_text(
        "".join(
            f"processor\t: {core}\nBogoMIPS\t: 38.40\nFeatures\t: fp asimd evtstrm crc32 cpuid\n"
            f"CPU implementer\t: 0x41\nCPU architecture: 8\nCPU variant\t: 0x0\nCPU part\t: {board.part}\n"
            "CPU revision\t: 4\n\n"
            for core in range(4)
        )
        + f"Model\t\t: {board.model}\n"
    )
    (sysroot / "proc/device-tree/model").write_bytes(board.model.encode() + b"\0")
