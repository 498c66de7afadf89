"""RabbitMQ 4 in a folder: Debian 13's packages of it, fetched and unpacked, nothing installed.

Debian 12 has 3.10; the machine's own Debian mirror has the next release too.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from tests.debian_packages import NoPackages, fetch_packages, unpack_packages

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / ".rabbitmq"
RELEASE = "trixie"
MAJOR = "4."
PACKAGES = ("rabbitmq-server", "dash", "coreutils", "sed", "grep", "hostname", "mawk", "libc-bin", "base-files")
NOT_UNPACKED = ("python3", "libpython3", "perl", "dpkg_", "debconf", "libdb5", "adduser", "passwd", "tzdata")
"""Beginnings of the names of packages that only install scripts need."""
MOUNT_POINTS = ("proc", "dev", "tmp", "etc/rabbitmq", "var/lib/rabbitmq", "var/log/rabbitmq")
LAYOUT = 1


class Unavailable(Exception):
    """Not to be had here, with the reason."""


def prepare(folder: Path = FOLDER) -> Path:
    """A root folder with RabbitMQ 4 and Erlang in it.

    Raises:
        Unavailable: no apt, no mirror with that release, or no way to use another root.
    """
    for program in ("apt-get", "dpkg-deb", "unshare", "chroot", "mount"):
        if shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin") is None:
            raise Unavailable(f"RabbitMQ 4 is unpacked from Debian's packages, and this machine has no {program}")
    root, stamp = folder / "root", folder / "ready.json"
    if not stamp.exists() or json.loads(stamp.read_text()).get("layout") != LAYOUT:
        started = time.monotonic()
        shutil.rmtree(folder, ignore_errors=True)
        release = _unpack(folder / "apt", root)
        stamp.write_text(json.dumps({"layout": LAYOUT, "rabbitmq": release}))
        shutil.rmtree(folder / "apt")
        print(f"RabbitMQ {release} unpacked in {time.monotonic() - started:.0f} s", file=sys.stderr)
    tried = subprocess.run(
        [*inside(root, {}), "/bin/true"], capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=30
    )
    if tried.returncode:
        raise Unavailable(f"no mount namespace with another root here: {tried.stderr.strip()[-200:]}")
    return root


def inside(root: Path, folders: dict[str, Path]) -> list[str]:
    """The beginning of a command line that runs in ``root``, with ``folders`` at the places that are their keys.

    The process that is started becomes the program: its id is the program's.
    """
    mounts = ['mount --rbind /dev "$0/dev"', 'mount --rbind /proc "$0/proc"', 'mount -t tmpfs none "$0/tmp"']
    mounts += [f"mount --bind '{path}' \"$0/{place.lstrip('/')}\"" for place, path in folders.items()]
    own = [] if os.geteuid() == 0 else ["--map-root-user"]
    script = "; ".join(["set -e", *mounts, 'exec chroot "$0" "$@"'])
    return ["unshare", *own, "--mount", "--propagation", "private", "/bin/sh", "-c", script, str(root)]


def _unpack(apt: Path, root: Path) -> str:
    """RabbitMQ's release, its packages unpacked in ``root``."""
    try:
        archives = fetch_packages(apt, RELEASE, PACKAGES)
    except NoPackages as reason:
        raise Unavailable(str(reason)) from reason
    release = next(path.name.split("_")[1] for path in archives if path.name.startswith("rabbitmq-server_"))
    if not release.startswith(MAJOR):
        raise Unavailable(f"Debian {RELEASE} has RabbitMQ {release} here, not {MAJOR}x")
    unpack_packages(archives, root, left_out=NOT_UNPACKED)
    for place in MOUNT_POINTS:
        (root / place).mkdir(parents=True, exist_ok=True)
    (root / "etc/hosts").write_text("127.0.0.1 localhost\n")
    return release
