"""RabbitMQ 4 in a folder: Debian 13's packages of it, fetched and unpacked, nothing installed.

Debian 12 has 3.10. The machine's own Debian mirror has the next release too: apt resolves and fetches its packages into
a folder of its own, and checks their signatures with the keys this machine trusts Debian by.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

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
    for folder in ("lists/partial", "cache/archives/partial"):
        (apt / folder).mkdir(parents=True)
    (apt / "status").touch()
    (apt / "sources.list").write_text(_source())
    settings = {
        "APT::Install-Recommends": "false",
        "APT::Sandbox::User": "",
        "Acquire::Languages": "none",
        "Dir::Etc::SourceList": str(apt / "sources.list"),
        "Dir::Etc::SourceParts": "/dev/null",
        "Dir::State::Lists": str(apt / "lists"),
        "Dir::State::status": str(apt / "status"),
        "Dir::Cache": str(apt / "cache"),
    }
    command = ["apt-get", "-qq", "-y", *(f"-o{name}={value}" for name, value in settings.items())]
    for words in (["update"], ["install", "--download-only", *PACKAGES]):
        done = subprocess.run([*command, *words], capture_output=True, text=True, stdin=subprocess.DEVNULL)
        problems = [line for line in done.stderr.splitlines() if line.startswith("E:") or "Failed to fetch" in line]
        if done.returncode or problems:
            raise Unavailable(f"this machine's package source gives no Debian {RELEASE}: {'; '.join(problems)[:300]}")
    archives = sorted((apt / "cache/archives").glob("*.deb"))
    release = next(path.name.split("_")[1] for path in archives if path.name.startswith("rabbitmq-server_"))
    if not release.startswith(MAJOR):
        raise Unavailable(f"Debian {RELEASE} has RabbitMQ {release} here, not {MAJOR}x")
    root.mkdir(parents=True)
    for package in archives:
        if not package.name.startswith(NOT_UNPACKED):
            subprocess.run(["dpkg-deb", "--extract", str(package), str(root)], check=True)
    (root / "usr/bin/awk").symlink_to("mawk")  # else the package's install script makes it
    if not (root / "bin/sh").exists():
        (root / "usr/bin/sh").symlink_to("dash")
    for place in MOUNT_POINTS:
        (root / place).mkdir(parents=True, exist_ok=True)
    (root / "etc/hosts").write_text("127.0.0.1 localhost\n")
    return release


def _source() -> str:
    """The machine's own Debian mirror, with another release of it."""
    form = "$(REPO_URI) $(LABEL) $(COMPONENT)"
    done = subprocess.run(
        ["apt-get", "indextargets", "--format", form, "Created-By: Packages"], capture_output=True, text=True
    )
    for line in done.stdout.splitlines():
        address, _, label = line.partition(" ")
        if label == "Debian main":
            return f"deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] {address} {RELEASE} main\n"
    raise Unavailable("this machine's package sources name no Debian mirror (apt-get update?)")
