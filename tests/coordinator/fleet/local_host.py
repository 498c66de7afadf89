"""This machine's shell with another home folder and a search path of its own: a host without a network between."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

from coordinator.fleet.host import CommandFailed, Completed, HostLost

PROGRAMS = (
    "sh awk cat chmod cp cut dirname df du env grep id ln ls mkdir mv nohup od printf ps readlink rm rmdir sed setsid "
    "sha256sum sleep sort tail test touch tr uname wc kill getconf"
)


class LocalHost:
    """Implements :class:`coordinator.fleet.host.Host`.

    Args:
        home: made if need be.
        python: what it finds as ``python3``; None: it has none.
        lost_after: the connection ends with that many calls.
    """

    def __init__(self, home: Path, *, python: Path | None = None, lost_after: int = 10**9) -> None:
        self.home = home
        self.programs = home.with_name(f"{home.name}-bin")
        self.commands: list[str] = []
        self.calls = 0
        self.lost_after = lost_after
        self.shell = "/bin/sh"
        home.mkdir(exist_ok=True)
        self.programs.mkdir(exist_ok=True)
        for name in PROGRAMS.split():
            found = shutil.which(name)
            if found and not (self.programs / name).is_symlink():
                (self.programs / name).symlink_to(found)
        if python is not None and not (self.programs / "python3").is_symlink():
            (self.programs / "python3").symlink_to(python)

    @property
    def name(self) -> str:
        """For messages."""
        return "local"

    def add_program(self, name: str, text: str) -> None:
        """A shell script in its search path, in place of what is there."""
        path = self.programs / name
        path.unlink(missing_ok=True)
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    def _count(self) -> None:
        self.calls += 1
        if self.calls > self.lost_after:
            raise HostLost(f"local: the connection ended with call {self.calls}")

    async def run(self, command: str, *, stdin: bytes = b"", timeout_s: float = 120.0) -> Completed:
        """As the protocol says."""
        self._count()
        self.commands.append(command)
        process = await asyncio.create_subprocess_exec(
            self.shell,
            "-c",
            command,
            cwd=self.home,
            env={"HOME": str(self.home), "PATH": str(self.programs), "XDG_RUNTIME_DIR": str(self.programs)},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            out, err = await asyncio.wait_for(process.communicate(stdin), timeout_s)
        except TimeoutError:
            process.kill()
            await process.wait()
            raise HostLost(f"local: no answer within {timeout_s:.0f} s") from None
        status = process.returncode or 0
        return Completed(
            status if status >= 0 else 128 - status,
            out.decode(errors="replace"),
            err.decode(errors="replace"),
        )

    async def put(self, source: Path, target: str) -> None:
        """As the protocol says."""
        self._count()
        place = self.home / target
        unfinished = place.with_name(f"{place.name}.part")
        try:
            shutil.copyfile(source, unfinished)
            os.replace(unfinished, place)
        except OSError as error:
            raise CommandFailed(f"local: {target}: {error.strerror}") from error

    async def close(self) -> None:
        """As the protocol says."""
