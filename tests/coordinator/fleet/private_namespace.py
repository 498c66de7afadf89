"""Processes in user, mount and process namespaces of their own: what they mount and start is theirs alone.

Needs no root where the kernel lets users make namespaces. In the outer user namespace the caller is root, which is
what mounting needs; in the inner one, where the command runs, it is an ordinary user with number :data:`UID`.
"""

from __future__ import annotations

import contextlib
import functools
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import psutil

UID = 1000
"""Number of the user inside, on Raspberry Pi OS that of the first one."""
OUTER = ("unshare", "--user", "--map-root-user", "--mount", "--pid", "--fork")
INNER = ("unshare", "--user", f"--map-user={UID}", f"--map-group={UID}")


class Unavailable(Exception):
    """What a test needs cannot be had on this machine; the message says what and why."""


@functools.cache
def require_namespaces() -> None:
    """Nothing where namespaces can be made and mounted in.

    Raises:
        Unavailable: the program or the right is missing.
    """
    if shutil.which("unshare") is None:
        raise Unavailable("unshare is not installed (Debian: util-linux)")
    probe = [*OUTER, "sh", "-c", f"mount -t proc proc /proc && mount -t tmpfs none /mnt && exec {shlex.join(INNER)} id"]
    done = subprocess.run(probe, capture_output=True, text=True, timeout=20, check=False)
    if done.returncode:
        raise Unavailable(f"no namespaces can be made here: {(done.stderr.strip().splitlines() or ['no reason'])[-1]}")


class PrivateProcess:
    """A running command and all that it starts; gone with :meth:`stop`.

    Attributes:
        log: file with what it writes to stdout and stderr.
    """

    def __init__(
        self, mounts: str, command: Sequence[str], log: Path, *, root: Path | None = None, group: Path | None = None
    ) -> None:
        """Start ``command``.

        Args:
            mounts: shell lines that run first, as root of the outer namespace.
            root: the command's ``/``.
            group: control group for all of it.
        """
        require_namespaces()
        if root is None:
            inner = shlex.join([*INNER, *command])
        else:
            # --root changes it after the users are mapped; the root folder needs no unshare program then.
            inner = shlex.join([*INNER, f"--root={root}", "--wd=/", *command])
        script = f"set -e\n{mounts}\nexec {inner}\n"
        self.log = log
        with log.open("a") as out:
            joining = ["sh", "-c", 'echo $$ > "$0/cgroup.procs" && exec "$@"', str(group)] if group else []
            self._process = subprocess.Popen(
                [*joining, *OUTER, "sh", "-c", script], stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT
            )

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def first(self) -> psutil.Process:
        """The first process inside, as seen from here.

        Raises:
            psutil.NoSuchProcess: it has ended.
        """
        inside = psutil.Process(self._process.pid).children()
        if not inside:
            raise psutil.NoSuchProcess(self._process.pid)
        return inside[0]

    def seen_from_outside(self, path: Path) -> Path:
        """``path`` of the inside, by which this process can read it."""
        return Path(f"/proc/{self.first().pid}/root{path}")

    def wait(self, timeout_s: float) -> int:
        """Exit status of the command, when it ends by itself.

        Raises:
            subprocess.TimeoutExpired: it does not.
        """
        return self._process.wait(timeout_s)

    def stop(self) -> None:
        """Ends it and whatever it started: the end of its first process takes the others along, and is waited for."""
        with contextlib.suppress(psutil.NoSuchProcess):
            self.first().kill()  # not unshare's --kill-child: changing users switches that off
        try:
            self._process.wait(5.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
