"""Debian packages of another release, fetched and unpacked into a folder: nothing is installed and no root is needed.

apt resolves and fetches them from the machine's own Debian mirror into a folder of its own, and checks their signatures
with the keys this machine trusts Debian by.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path


class NoPackages(Exception):
    """They cannot be had here, with the reason."""


def fetch_packages(apt: Path, release: str, packages: Sequence[str]) -> list[Path]:
    """The package files of ``packages`` and of all that they need.

    Args:
        apt: a folder for apt's own files, made here.
        release: name of a Debian release, ``trixie``.

    Raises:
        NoPackages: no mirror, or one without that release.
    """
    for folder in ("lists/partial", "cache/archives/partial"):
        (apt / folder).mkdir(parents=True)
    (apt / "status").touch()
    (apt / "sources.list").write_text(source_line(release))
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
    for words in (["update"], ["install", "--download-only", *packages]):
        done = subprocess.run([*command, *words], capture_output=True, text=True, stdin=subprocess.DEVNULL)
        problems = [line for line in done.stderr.splitlines() if line.startswith("E:") or "Failed to fetch" in line]
        if done.returncode or problems:
            raise NoPackages(f"this machine's package source gives no Debian {release}: {'; '.join(problems)[:300]}")
    return sorted((apt / "cache/archives").glob("*.deb"))


def unpack_packages(archives: Sequence[Path], root: Path, *, left_out: tuple[str, ...]) -> None:
    """Unpack them in ``root``, but for those whose names begin with one of ``left_out``."""
    root.mkdir(parents=True)
    for package in archives:
        if not package.name.startswith(left_out):
            subprocess.run(["dpkg-deb", "--extract", str(package), str(root)], check=True)
    (root / "usr/bin/awk").symlink_to("mawk")  # else the package's install script makes it
    if not (root / "bin/sh").exists():
        (root / "usr/bin/sh").symlink_to("dash")


def source_line(release: str) -> str:
    """The machine's own Debian mirror as apt's sources name it, with another release of it.

    Raises:
        NoPackages: the machine has none.
    """
    form = "$(REPO_URI) $(LABEL) $(COMPONENT)"
    done = subprocess.run(
        ["apt-get", "indextargets", "--format", form, "Created-By: Packages"], capture_output=True, text=True
    )
    for line in done.stdout.splitlines():
        address, _, label = line.partition(" ")
        if label == "Debian main":
            return f"deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] {address} {release} main\n"
    raise NoPackages("this machine's package sources name no Debian mirror (apt-get update?)")
