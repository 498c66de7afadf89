"""Control groups of Linux, version 1 or 2: made for one device, filled by a shell, read, and removed.

They lie below this process's own group, or below the nearest one above it that can be written. Swap does not hide what
is used. Pages of read and mapped files are charged as well, but given back before anything is killed.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from edge.system.parent_process import is_alive

PERIOD_US = 100_000
LEAST_QUOTA_US = 1000
"""The kernel takes none below."""

PREFIX = "apportion"
REMOVAL_S = 3.0

_GROUP = re.compile(rf"{PREFIX}-(\d+)-.+")
_JOIN = 'for group in "$@"; do shift; [ "$group" = -- ] && break; echo $$ > "$group/cgroup.procs" || exit 125; done'


@dataclass(frozen=True)
class Limits:
    """What a device may take: ``memory_bytes`` of both processes, ``cpu_share`` of one core; 0 = no limit."""

    memory_bytes: int = 0
    cpu_share: float = 0.0


UNLIMITED = Limits()


@dataclass(frozen=True)
class CeilingReport:
    """What a ceiling did so far.

    Attributes:
        kind: ``cgroup v1``, ``cgroup v2``, or ``prlimit``, which bounds each process alone.
        kills: processes the kernel killed for the memory limit; None where it does not tell.
        peak_bytes: the most the kernel charged to the group, file pages it could have taken back included; 0 unknown.
    """

    kind: str
    limit_bytes: int
    cpu_share: float
    kills: int | None
    peak_bytes: int


@dataclass(frozen=True)
class GroupFiles:
    """Names of one version's control files."""

    kind: str
    memory: str
    swap: str
    quota: str
    peak: str
    kills: tuple[str, str]


_V1 = GroupFiles(
    "cgroup v1",
    "memory.limit_in_bytes",
    "memory.memsw.limit_in_bytes",
    "cpu.cfs_quota_us",
    "memory.max_usage_in_bytes",
    ("memory.oom_control", "oom_kill"),
)
_V2 = GroupFiles(
    "cgroup v2",
    "memory.max",
    "memory.swap.max",
    "cpu.max",
    "memory.peak",
    ("memory.events", "oom_kill"),
)


@dataclass(frozen=True)
class ControlGroup:
    """One device's :class:`~coordinator.local_devices.ceilings.Ceiling`.

    A group in version 2, one per controller in version 1.
    """

    limits: Limits
    files: GroupFiles
    memory: Path | None
    cpu: Path | None

    @property
    def folders(self) -> tuple[Path, ...]:
        """Each once."""
        return tuple(dict.fromkeys(folder for folder in (self.memory, self.cpu) if folder is not None))

    def command(self, command: Sequence[str]) -> list[str]:
        """See :class:`coordinator.local_devices.ceilings.Ceiling`; a shell enters the groups and execs it."""
        script = f'{_JOIN}; exec "$@"'
        return ["/bin/sh", "-c", script, "ceiling", *map(str, self.folders), "--", *command]

    def report(self) -> CeilingReport:
        """See :class:`coordinator.local_devices.ceilings.Ceiling`."""
        return CeilingReport(
            kind=self.files.kind,
            limit_bytes=self.limits.memory_bytes,
            cpu_share=self.limits.cpu_share,
            kills=self._number(*self.files.kills),
            peak_bytes=self._number(self.files.peak) or 0,
        )

    def close(self) -> None:
        """See :class:`coordinator.local_devices.ceilings.Ceiling`."""
        for folder in self.folders:
            remove_group(folder, patience_s=REMOVAL_S)

    def _number(self, name: str, field: str = "") -> int | None:
        if self.memory is None:
            return None
        try:
            text = (self.memory / name).read_text()
        except OSError:
            return None
        for line in text.splitlines():
            words = line.split()
            if words and words[:-1] == ([field] if field else []) and words[-1].isdecimal():
                return int(words[-1])
        return None


def control_group(name: str, limits: Limits, *, root: Path = Path("/")) -> ControlGroup:
    """A new group called ``name`` with ``limits`` in force.

    Raises:
        OSError: there are no control groups here, or none can be written; the text of the last refusal.
    """
    wanted = [c for c, limit in (("memory", limits.memory_bytes), ("cpu", limits.cpu_share)) if limit]
    places = {controller: list(_places(controller, root)) for controller in wanted}
    versions = {files.kind for found in places.values() for files, _ in found}
    refusal = OSError("no hierarchy has the controllers " + " and ".join(wanted))
    for files in (_V2, _V1):
        if files.kind not in versions or any(not [p for f, p in places[c] if f is files] for c in wanted):
            continue
        made: dict[str, Path] = {}
        try:
            for controller in wanted:
                made[controller] = _made(name, [p for f, p in places[controller] if f is files], controller, files)
            group = ControlGroup(limits, files, made.get("memory"), made.get("cpu"))
            _write_limits(group)
            return group
        except OSError as error:
            refusal = error
            for folder in made.values():
                remove_group(folder)
    raise refusal


def remove_leftovers(*, root: Path = Path("/")) -> list[str]:
    """Remove the groups of coordinators that are no more, beside where ours would be; their names."""
    removed = []
    for controller in ("memory", "cpu"):
        for _, parent in _places(controller, root):
            with contextlib.suppress(OSError):
                for folder in sorted(parent.iterdir()):
                    found = _GROUP.fullmatch(folder.name)
                    if found and not is_alive(int(found[1])) and remove_group(folder):
                        removed.append(folder.name)
    return list(dict.fromkeys(removed))


def remove_group(folder: Path, *, patience_s: float = 0.0) -> bool:
    """Whether the group is gone; processes that are in it still are killed once ``patience_s`` have passed."""
    give_up_at = time.monotonic() + patience_s
    for is_last in (False, True):
        while True:
            try:
                folder.rmdir()
                return True
            except FileNotFoundError:
                return True
            except OSError:
                if time.monotonic() >= give_up_at:
                    break
            time.sleep(0.02)
        if not is_last:
            _kill(folder)
            give_up_at = time.monotonic() + 1.0
    return False


def _kill(folder: Path) -> None:
    """End what is left in a group of ours: trainers whose supervisor is gone."""
    with contextlib.suppress(OSError):
        for pid in (folder / "cgroup.procs").read_text().split():
            with contextlib.suppress(OSError):
                os.kill(int(pid), 9)


def _places(controller: str, root: Path) -> Iterator[tuple[GroupFiles, Path]]:
    """Groups that may get a child for ``controller``: this process's own first, then those above it."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        steps = [step for step in group.split("/") if step not in ("", "..")]
        if controllers and controller in controllers.split(","):
            bases, files = [root / "sys/fs/cgroup" / controllers, root / "sys/fs/cgroup" / controller], _V1
        elif number == "0" and not controllers:
            bases, files = [root / "sys/fs/cgroup", root / "sys/fs/cgroup/unified"], _V2
        else:
            continue
        base = next((b for b in bases if (b / "cgroup.procs").exists()), None)
        for depth in range(len(steps), -1, -1) if base is not None else ():
            parent = base.joinpath(*steps[:depth]) if base is not None else root
            if files is _V1 or controller in _text(parent / "cgroup.controllers").split():
                yield files, parent


def _made(name: str, parents: Sequence[Path], controller: str, files: GroupFiles) -> Path:
    """The group's folder below the first of ``parents`` that takes one whose controller works."""
    refusal: OSError | None = None
    for parent in parents:
        try:
            if files is _V2 and controller not in _text(parent / "cgroup.subtree_control").split():
                # Refused where processes are in the parent itself; the next one above may be free of them.
                (parent / "cgroup.subtree_control").write_text(f"+{controller}")
            folder = parent / name
            folder.mkdir(exist_ok=True)
            _require_entry(folder)
            return folder
        except OSError as error:
            refusal = error
    assert refusal is not None
    raise refusal


def _require_entry(folder: Path) -> None:
    """Check that a process of ours may enter the group: writing it is not enough where another one owns us."""
    done = subprocess.run(
        ["/bin/sh", "-c", 'echo $$ > "$1/cgroup.procs"', "ceiling", str(folder)], capture_output=True, check=False
    )
    if done.returncode:
        remove_group(folder)
        raise OSError(f"{folder}: a process cannot be moved there")


def _write_limits(group: ControlGroup) -> None:
    limits, files = group.limits, group.files
    if group.memory is not None:
        (group.memory / files.memory).write_text(str(limits.memory_bytes))
        with contextlib.suppress(OSError):  # a kernel without swap accounting has no such file
            # Version 1 bounds memory and swap together, version 2 swap alone.
            (group.memory / files.swap).write_text(str(limits.memory_bytes) if files is _V1 else "0")
    if group.cpu is not None:
        quota = max(LEAST_QUOTA_US, round(limits.cpu_share * PERIOD_US))
        if files is _V1:
            (group.cpu / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (group.cpu / files.quota).write_text(str(quota))
        else:
            (group.cpu / files.quota).write_text(f"{quota} {PERIOD_US}")


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
