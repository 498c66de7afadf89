"""Boards as an emulator shows them to a program: the processor, and the files by which programs tell what it is."""

from __future__ import annotations

import os
import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.arm.userland import EMULATOR, Userland
from tests.profiles.boards import PI_3B_PLUS, PI_4, PI_5, Files, write_tree

FLAGS = "-mcpu=cortex-a53"
"""What the session library is compiled for: the oldest of the boards, so that one library serves all."""

PATIENCE_S = 600.0
"""A program on a device that takes longer hangs: none takes 30 s on an idle machine."""


@dataclass(frozen=True)
class Board:
    """One kind of board.

    Attributes:
        name: as the catalog has it.
        processor: the emulator's name of its cores.
        files: its own ``/proc`` and ``/sys``.
    """

    name: str
    processor: str
    files: Files

    @property
    def model(self) -> str:
        """What the kernel calls the board."""
        return self.files["/proc/device-tree/model"].rstrip("\0")


FOUR_CORES = {f"/sys/devices/system/cpu/{which}": "0-3\n" for which in ("possible", "present", "online")}
"""What onnxruntime's own count of the processors reads."""

BOARDS = (
    Board("pi-3b-plus", "cortex-a53", {**PI_3B_PLUS, **FOUR_CORES}),
    Board("pi-4-4gb", "cortex-a72", {**PI_4, **FOUR_CORES}),
    Board("pi-5-8gb", "cortex-a76", {**PI_5, **FOUR_CORES}),
)


OWN = ("proc", "sys")


class EmulatedDevice:
    """A board with the userland on its disk. Its programs see this machine's other files, network and memory."""

    def __init__(self, board: Board, userland: Userland) -> None:
        self.board = board
        self._userland = userland
        self._sysroot = userland.root.parent / board.name
        write_sysroot(self._sysroot, userland.root, board.files)

    @property
    def emulator(self) -> list[str]:
        """Words before a program that is to run on the device."""
        return [EMULATOR, "-cpu", self.board.processor, "-L", str(self._sysroot)]

    def command(self, *arguments: str) -> list[str]:
        """Python on the device with ``arguments``."""
        return [*self.emulator, str(self._userland.python), *arguments]

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


def write_sysroot(sysroot: Path, root: Path, files: Files) -> None:
    """Where the emulator looks absolute paths up first: the userland's folders and the board's own files."""
    sysroot.mkdir(exist_ok=True)
    for entry in root.iterdir():
        if entry.name not in OWN and not (sysroot / entry.name).is_symlink():
            (sysroot / entry.name).symlink_to(entry)
    # Without its cpuinfo onnxruntime dies while it is imported: this machine's own has another form.
    write_tree(sysroot, {path: text for path, text in files.items() if path.split("/")[1] in OWN})
