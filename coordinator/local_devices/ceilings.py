"""Memory ceilings and CPU quotas that the kernel enforces on a local device: both of its processes together.

By control groups; where none can be made, ``prlimit --data`` bounds each process alone, and allocations fail instead of
a process being killed. A share of a core needs a control group. Groups are removed with the device; those of a
coordinator that was killed are removed when the next one starts.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from coordinator.local_devices.control_groups import PREFIX, CeilingReport, Limits, control_group
from edge.contracts.errors import ConfigError


class Ceiling(Protocol):
    """Limits in force for what is started through them."""

    def command(self, command: Sequence[str]) -> list[str]:
        """``command`` below the ceiling; it keeps the process id it is started with."""

    def report(self) -> CeilingReport:
        """What it did so far."""

    def close(self) -> None:
        """Remove it; what runs below a group has ended by then, or is ended."""


@dataclass(frozen=True)
class DataLimit:
    """``prlimit --data`` on each process: what is allocated, without mapped files and stacks."""

    limits: Limits

    def command(self, command: Sequence[str]) -> list[str]:
        """See :class:`Ceiling`."""
        return ["prlimit", f"--data={self.limits.memory_bytes}", "--", *command]

    def report(self) -> CeilingReport:
        """See :class:`Ceiling`."""
        return CeilingReport("prlimit", self.limits.memory_bytes, 0.0, None, 0)

    def close(self) -> None:
        """Nothing is left behind."""


def open_ceiling(name: str, limits: Limits, *, root: Path = Path("/")) -> Ceiling:
    """Limits for one device, to be closed when it has ended.

    Args:
        name: of the device.
        root: where ``proc`` and ``sys`` are.

    Raises:
        ConfigError: this machine can enforce them in no way; the text says what was tried.
    """
    try:
        return control_group(f"{PREFIX}-{os.getpid()}-{name}", limits, root=root)
    except OSError as error:
        why = f"no control group can be made here ({error})"
    if limits.cpu_share:
        problem = f"$.cohort.local: cpu-share {limits.cpu_share:g} for {name}, but {why}"
        raise ConfigError([problem], hint="run as root or in a delegated group, or leave cpu-share out")
    if shutil.which("prlimit") is None:
        problem = f"$.cohort.local: a ceiling for {name}, but {why}, and there is no prlimit"
        raise ConfigError([problem], hint='install util-linux, or set ceiling = "none"')
    return DataLimit(limits)


def describe(reports: Sequence[CeilingReport]) -> str:
    """One line about the devices' ceilings for the run's log; empty without any."""
    if not reports:
        return ""
    kinds = sorted({report.kind for report in reports})
    each = " (each process alone)" if kinds == ["prlimit"] else ""
    return f"{len(reports)} devices below ceilings by {' and '.join(kinds)}{each}"
