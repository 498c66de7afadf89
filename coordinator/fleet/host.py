"""A machine that a device is made of, as provisioning reaches it: run a command there, put a file there.

Over SSH in :mod:`coordinator.fleet.ssh_host`, over adb in :mod:`coordinator.fleet.adb_host`. Steps are written against
this alone, so that they are the same on both.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from edge.contracts.errors import ApportionError


class HostUnreachable(ApportionError):
    """The host cannot be reached, or refuses us; nothing was changed there by this attempt."""

    code = "host-unreachable"
    exit_code = 3


class HostLost(ApportionError):
    """The connection ended in the middle; what was finished before is kept, and the same command goes on from there."""

    code = "host-lost"
    exit_code = 3


class HostUnfit(ApportionError):
    """The host cannot become a device: its processor, its system, its Python or its space; it was left as it was."""

    code = "host-unfit"
    exit_code = 1


class CommandFailed(ApportionError):
    """A command on the host ended with a status other than 0; the message has the command's own last words."""

    code = "host-command"
    exit_code = 1


@dataclass(frozen=True)
class Completed:
    """A finished command on a host.

    Attributes:
        status: exit status; 128 + signal where a signal ended it.
        stdout, stderr: decoded, undecodable bytes replaced.
    """

    status: int
    stdout: str
    stderr: str


class Host(Protocol):
    """An open connection. Commands are POSIX ``sh`` lines; paths are absolute or relative to the home folder."""

    @property
    def name(self) -> str:
        """As the owner wrote it: ``pi@raspberrypi.local``, ``adb:R58M123``."""

    async def run(self, command: str, *, stdin: bytes = b"", timeout_s: float = 120.0) -> Completed:
        """Run ``command`` under ``sh``; whatever its status.

        Raises:
            HostLost: the connection ended, or nothing came back within ``timeout_s``.
        """

    async def put(self, source: Path, target: str) -> None:
        """Copy one file; ``target`` has all of it or does not change.

        Raises:
            HostLost: the connection ended.
            CommandFailed: it cannot be written there, such as for want of space.
        """

    async def close(self) -> None:
        """End the connection; harmless when it has ended."""
