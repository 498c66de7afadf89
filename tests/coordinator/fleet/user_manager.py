"""What a systemd that runs a user's services needs beside its program: a control group, and a runtime folder."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from tests.coordinator.fleet.private_namespace import UID, Unavailable

PROGRAMS = ("/lib/systemd/systemd", "/usr/lib/systemd/systemd")
ROOTS = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"))
BOOTED = "/run/systemd/system"
"""By this folder programs tell that a systemd runs the machine; a user's own one starts only there."""
RUNTIME_FOLDER = f"/run/user/{UID}"


def find_systemd() -> str:
    """The program.

    Raises:
        Unavailable: it, or systemctl, is not here.
    """
    found = [path for path in PROGRAMS if os.access(path, os.X_OK)]
    if not found or shutil.which("systemctl") is None:
        raise Unavailable("no systemd here (Debian: systemd)")
    return found[0]


def make_control_group(name: str) -> Path:
    """A control group (version 2) that this process may fill.

    Raises:
        Unavailable: none can be made here.
    """
    root = next((root for root in ROOTS if (root / "cgroup.procs").exists()), None)
    if root is None:
        raise Unavailable("no control groups of version 2 here, which systemd needs")
    own = next(
        (line[3:].strip("/") for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::")),
        "",
    )
    for parent in (root, root / own):
        group = parent / name
        try:
            group.mkdir()
        except OSError:
            continue
        return group
    raise Unavailable(f"no control group can be made below {root}, which systemd needs")


def remove_control_group(group: Path) -> None:
    """Removes it with those made in it; nothing runs there any more."""
    for folder, _, _ in os.walk(group, topdown=False):
        Path(folder).rmdir()


def start_line(systemd: str, home: Path, user: str) -> str:
    """A shell line that starts it as the user of the inner namespace, and waits until it answers."""
    variables = f"HOME='{home}' USER={user} XDG_RUNTIME_DIR={RUNTIME_FOLDER} PATH=/usr/local/bin:/usr/bin:/bin"
    waiting = f"env -i {variables} systemctl --user is-active -q default.target && break; sleep 0.1"
    return f"env -i {variables} {systemd} --user & for i in $(seq 100); do {waiting}; done"
