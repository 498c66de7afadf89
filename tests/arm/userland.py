"""An aarch64 userland for an emulator: Debian's Python and the wheels of a device, fetched and unpacked, nothing run.

Needs no root: apt resolves and fetches packages of another architecture into a folder of its own from the package
sources this machine has, and pip fetches wheels of another platform from wherever its configuration says. Only the
emulator and the cross compiler are installed into the machine, and only by root.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from tests.coordinator.fleet.private_namespace import Unavailable
from tests.debian_packages import NoPackages, source_line

ROOT = Path(__file__).resolve().parents[2]
EMULATOR = "qemu-aarch64-static"
COMPILER = "aarch64-linux-gnu-g++"
SYSTEM_PACKAGES = {EMULATOR: "qemu-user-static", COMPILER: "g++-aarch64-linux-gnu"}
MEASURING_PACKAGES = {"llvm-mca-19": "llvm-19", "valgrind": "valgrind", "qemu-aarch64": "qemu-user"}
"""What the kernels are measured with where there is no board: models of processors and of caches, plugins."""
PYTHONS = ("3.11", "3.12")
LIBRARIES = ("libstdc++6", "libgomp1")
HOST = (
    *("bash", "dash", "coreutils", "tar", "gzip", "grep", "sed", "findutils", "mawk", "hostname", "procps", "libc-bin"),
    *("util-linux", "base-files", "openssh-server", "openssh-client", "openssh-sftp-server"),
)
"""What a host has beside Python: enough to log in to it and run shell lines."""
NOT_UNPACKED = ("perl", "libperl", "debconf", "adduser", "ucf", "readline-common")
"""Beginnings of the names of packages that only install scripts need."""
MOUNT_POINTS = ("home/pi", "proc", "sys", "dev", "run", "tmp", "usr/local", "var/tmp")
LAYOUT = 4
"""Raised when a userland made before lacks something."""
WHEELS = ("numpy", "msgspec", "safetensors", "paho-mqtt", "zstandard", "onnxruntime")
OPTIONAL_WHEELS = ("executorch",)
OLDEST_GLIBC = 17
"""Minor version of the oldest glibc 2.x that aarch64 wheels are built for."""


@dataclass(frozen=True)
class Userland:
    """A prepared one.

    Attributes:
        root: folder with ``usr``, ``lib`` and so on.
        python: the aarch64 interpreter in it.
        packages: folder of its Python packages.
    """

    root: Path
    python: Path
    packages: Path


def prepare(folder: Path) -> Userland:
    """The userland in ``folder``, fetched when it is not there or holds other releases than this environment.

    Raises:
        Unavailable: no emulator, no package source, no index, or one without aarch64 packages.
    """
    install_system_packages()
    if shutil.which(EMULATOR) is None:
        raise Unavailable(f"{EMULATOR} is not installed (Debian: {SYSTEM_PACKAGES[EMULATOR]}) and nobody here is root")
    releases, stamp = _releases(), folder / "ready.json"
    wanted = {"layout": LAYOUT, "releases": releases}
    made_before = json.loads(stamp.read_text()) if stamp.exists() else {}
    if any(made_before.get(key) != value for key, value in wanted.items()):
        started = time.monotonic()
        shutil.rmtree(folder, ignore_errors=True)
        root = folder / "root"
        python, glibc = _unpack_system(folder / "apt", root, PYTHONS)
        packages = root / "usr/local/lib" / f"python{python}" / "dist-packages"
        _unpack_wheels(releases, python, glibc, folder / "wheels", packages)
        stamp.write_text(json.dumps({**wanted, "python": python}))
        print(f"aarch64 userland made in {time.monotonic() - started:.0f} s", file=sys.stderr)
    root, python = folder / "root", json.loads(stamp.read_text())["python"]
    made = Userland(root, root / "usr/bin" / f"python{python}", root / f"usr/local/lib/python{python}/dist-packages")
    _install_agent(made.packages)
    return made


def prepare_host(folder: Path, release: str, python: str) -> Userland:
    """Debian's ``release`` as a host has it, in ``folder``, fetched when it is not there: no packages but Debian's.

    Raises:
        Unavailable: no emulator, or no mirror with that release for aarch64.
    """
    install_system_packages()
    if shutil.which(EMULATOR) is None:
        raise Unavailable(f"{EMULATOR} is not installed (Debian: {SYSTEM_PACKAGES[EMULATOR]}) and nobody here is root")
    root, stamp = folder / "root", folder / "ready.json"
    wanted = {"layout": LAYOUT, "release": release, "python": python}
    if not stamp.exists() or json.loads(stamp.read_text()) != wanted:
        shutil.rmtree(folder, ignore_errors=True)
        _unpack_system(folder / "apt", root, (python,), release)
        stamp.write_text(json.dumps(wanted))
    return Userland(root, root / "usr/bin" / f"python{python}", root / f"usr/local/lib/python{python}/dist-packages")


def install_system_packages(packages: Mapping[str, str] = SYSTEM_PACKAGES) -> None:
    """Installs programs where they are missing and can be installed; says so when that fails.

    Args:
        packages: program -> its package; emulator and cross compiler unless something else is asked for.
    """
    missing = [package for program, package in packages.items() if shutil.which(program) is None]
    if not missing or os.geteuid() != 0 or shutil.which("apt-get") is None:
        return
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    subprocess.run(["apt-get", "-qq", "update"], env=environment, capture_output=True)
    done = subprocess.run(
        ["apt-get", "-qq", "install", "-y", "--no-install-recommends", *missing],
        env=environment,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        print(f"not installed: {', '.join(missing)}: {_last_line(done.stderr)}", file=sys.stderr)


def _releases() -> dict[str, str]:
    """The releases of this environment: both sides then differ by their processor alone."""
    found = {name: version(name) for name in WHEELS}
    for name in OPTIONAL_WHEELS:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _unpack_system(apt: Path, root: Path, pythons: Sequence[str], release: str = "") -> tuple[str, int]:
    """Python's version and glibc's minor version, of the first of ``pythons`` that the package sources have.

    Args:
        release: of Debian; the machine's own sources when it is empty.
    """
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise Unavailable("an aarch64 userland is made from Debian packages, and this machine has no apt-get")
    for folder in ("lists/partial", "cache/archives/partial"):
        (apt / folder).mkdir(parents=True)
    (apt / "status").touch()
    settings = {
        "APT::Architecture": "arm64",
        "APT::Architectures::": "arm64",
        "APT::Install-Recommends": "false",
        "APT::Sandbox::User": "",
        "Acquire::Languages": "none",
        "Dir::State::Lists": str(apt / "lists"),
        "Dir::State::status": str(apt / "status"),
        "Dir::Cache": str(apt / "cache"),
    }
    if release:
        try:
            (apt / "sources.list").write_text(source_line(release))
        except NoPackages as reason:
            raise Unavailable(str(reason)) from reason
        settings |= {"Dir::Etc::SourceList": str(apt / "sources.list"), "Dir::Etc::SourceParts": "/dev/null"}
    command = ["apt-get", "-qq", "-y", *(f"-o{name}={value}" for name, value in settings.items())]
    done = subprocess.run([*command, "update"], capture_output=True, text=True)
    unfetched = [line for line in done.stderr.splitlines() if "Failed to fetch" in line]
    failure = ""
    for python in pythons:
        names = ("python3", f"python{python}-minimal", f"libpython{python}-stdlib", *LIBRARIES, *HOST)
        done = subprocess.run([*command, "install", "--download-only", *names], capture_output=True, text=True)
        if done.returncode == 0:
            break
        failure = _last_line(done.stderr)
    else:
        reason = unfetched[0] if unfetched else failure
        raise Unavailable(f"this machine's package sources give no aarch64 Python: {reason}")
    root.mkdir(parents=True)
    glibc = OLDEST_GLIBC
    for package in sorted((apt / "cache/archives").glob("*.deb")):
        if not package.name.startswith(NOT_UNPACKED):
            subprocess.run(["dpkg-deb", "--extract", str(package), str(root)], check=True)
        if release := re.match(r"libc6_2\.(\d+)", package.name):
            glibc = int(release[1])
    for name in ("bin", "sbin", "lib"):  # distributions that moved them into usr
        if not (root / name).exists():
            (root / name).symlink_to(f"usr/{name}")
    (root / "usr/bin/awk").symlink_to("mawk")  # else the package's install script makes it
    for place in MOUNT_POINTS:
        (root / place).mkdir(parents=True, exist_ok=True)
    for file in ("passwd", "group", "shadow"):
        (root / "etc" / file).touch()
    (root / "etc/hosts").write_text("127.0.0.1 localhost\n")
    return python, glibc


def _unpack_wheels(releases: dict[str, str], python: str, glibc: int, wheels: Path, packages: Path) -> None:
    platforms = [f"manylinux_2_{minor}_aarch64" for minor in range(OLDEST_GLIBC, glibc + 1)]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--only-binary=:all:", "--implementation", "cp", "--python-version", python]
    for platform in ("manylinux2014_aarch64", *platforms):
        command += ["--platform", platform]
    command += ["--dest", str(wheels), *(f"{name}=={release}" for name, release in releases.items())]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise Unavailable(f"pip finds no aarch64 wheels: {_last_line(done.stderr)}")
    for wheel in sorted(wheels.glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(packages)


def _install_agent(packages: Path) -> None:
    """This checkout's device side, and no more of it."""
    for name in ("profiles", "edge"):
        shutil.rmtree(packages / name, ignore_errors=True)
        shutil.copytree(ROOT / name, packages / name, ignore=shutil.ignore_patterns("__pycache__"))


def _last_line(text: str) -> str:
    lines = [line for line in text.strip().splitlines() if not line.startswith(("W:", "WARNING"))]
    return lines[-1] if lines else ""
