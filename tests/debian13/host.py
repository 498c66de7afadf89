"""Debian 13 as a host that can be logged in to: its own Python 3.13, glibc and sshd in namespaces of their own.

As Raspberry Pi OS trixie has them, but for the processor, which is this machine's.
"""

from __future__ import annotations

import contextlib
import json
import platform
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tests.coordinator.fleet.private_namespace import PrivateProcess, Unavailable, require_namespaces
from tests.coordinator.fleet.ssh_server import USER, SshServer, accounts, configuration, free_port, make_keys
from tests.debian_packages import NoPackages, fetch_packages, unpack_packages

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / ".debian13"
RELEASE = "trixie"
PACKAGES = (
    *("python3", "bash", "dash", "coreutils", "tar", "gzip", "grep", "sed", "findutils", "mawk", "hostname", "procps"),
    *("libc-bin", "util-linux", "base-files", "openssh-server", "openssh-client", "libstdc++6", "libgomp1"),
)
NOT_UNPACKED = ("perl", "libperl", "dpkg_", "debconf", "adduser", "ucf", "readline-common", "tzdata")
"""Beginnings of the names of packages that only install scripts need."""
MOUNT_POINTS = ("home/pi", "proc", "sys", "dev", "run", "tmp", "usr/local", "var/tmp")
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
HOME = Path("/home") / USER
INSIDE = Path("/run/host")
"""Where the server's own files are in there."""
LAYOUT = 1


def prepare(folder: Path = FOLDER) -> Path:
    """A root folder with Debian 13's programs, fetched when it is not there.

    Raises:
        Unavailable: no apt, or no mirror with that release.
    """
    for program in ("apt-get", "dpkg-deb"):
        if shutil.which(program) is None:
            raise Unavailable(f"Debian 13 is unpacked from its packages, and this machine has no {program}")
    root, stamp = folder / "root", folder / "ready.json"
    if not stamp.exists() or json.loads(stamp.read_text()) != {"layout": LAYOUT, "machine": platform.machine()}:
        started = time.monotonic()
        shutil.rmtree(folder, ignore_errors=True)
        try:
            unpack_packages(fetch_packages(folder / "apt", RELEASE, PACKAGES), root, left_out=NOT_UNPACKED)
        except NoPackages as reason:
            raise Unavailable(str(reason)) from reason
        for place in MOUNT_POINTS:
            (root / place).mkdir(parents=True, exist_ok=True)
        for file in ("passwd", "group", "shadow"):
            (root / "etc" / file).touch()
        (root / "etc/hosts").write_text("127.0.0.1 localhost\n")
        shutil.rmtree(folder / "apt")
        stamp.write_text(json.dumps({"layout": LAYOUT, "machine": platform.machine()}))
        print(f"Debian 13 unpacked in {time.monotonic() - started:.0f} s", file=sys.stderr)
    return root


@contextlib.contextmanager
def running_host(folder: Path, root: Path) -> Iterator[SshServer]:
    """A host with an empty home folder over the files in ``root``; its own files are in ``folder``, a new one.

    Raises:
        Unavailable: no namespaces can be made here.
    """
    require_namespaces()
    (folder / "home").mkdir(parents=True)
    keys, port = make_keys(folder), free_port()
    for name, text in accounts(keys, HOME).items():
        (folder / name).write_text(text)
    server_file = configuration(
        port=port,
        host_key=INSIDE / keys.host.name,
        authorized=INSIDE / f"{keys.client.name}.pub",
        environment={"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"},
    )
    (folder / "sshd_config").write_text(server_file)
    command = ["/usr/sbin/sshd", "-D", "-e", "-f", str(INSIDE / "sshd_config")]
    process = PrivateProcess(_mounts(folder, root), command, folder / "sshd.log", root=root)
    try:
        server = SshServer("127.0.0.1", port, USER, keys, folder / "home", process)
        server.wait_until_listening()
        yield server
    finally:
        process.stop()


def _mounts(folder: Path, root: Path) -> str:
    """Shell lines that make ``root`` the host's disk: read-only but for its home, ``/tmp`` and ``/run``."""
    lines = [
        f"mount --bind '{root}' '{root}'",
        f"mount -t proc proc '{root}/proc'",
        *(f"mount -t tmpfs none '{root}/{place}'" for place in ("dev", "run", "tmp", "usr/local")),
        f"chmod 1777 '{root}/tmp'",
        f"mkdir -p '{root}{INSIDE}' '{root}/dev/shm' '{root}/run/sshd'",
        f"ln -s /proc/self/fd '{root}/dev/fd'",
        *(f"touch '{root}/dev/{device}'; mount --bind /dev/{device} '{root}/dev/{device}'" for device in DEVICES),
        *(f"mount --bind '{folder}/{file}' '{root}/etc/{file}'" for file in ("passwd", "group", "shadow")),
        f"mount --bind '{folder}' '{root}{INSIDE}'",
        f"mount --bind '{folder}/home' '{root}{HOME}'",
        f"mount -o remount,bind,ro '{root}'",
    ]
    return "\n".join(lines)
