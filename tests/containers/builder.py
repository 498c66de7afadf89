"""Images built from container files by buildah, over a Debian with Python that is unpacked from its packages.

No registry of images is asked: the image that the files begin with is made here under its name. Steps run in a chroot,
which needs root and no daemon. pip's own configuration is taken along.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.coordinator.fleet.private_namespace import Unavailable
from tests.debian_packages import NoPackages, fetch_packages, unpack_packages

FILES = Path(__file__).parents[2] / "examples/containers"
PACKAGES = (
    *("python3", "python3-venv", "bash", "dash", "coreutils", "grep", "sed", "findutils", "mawk", "base-files"),
    *("libc-bin", "libstdc++6", "libgomp1"),
)
NOT_UNPACKED = ("perl", "libperl", "dpkg_", "debconf", "readline-common", "tzdata")
CERTIFICATES = "/etc/ssl/certs"


class Builder:
    """Images of a folder of their own; :meth:`close` removes them."""

    def __init__(self, folder: Path) -> None:
        """Raises:
        Unavailable: buildah is not installed, or nobody here is root.
        """
        if shutil.which("buildah") is None:
            raise Unavailable("no builder of container images is here (Debian: buildah)")
        if os.geteuid() != 0:
            raise Unavailable("buildah runs a file's steps in a chroot, which only root may make")
        self._folder = folder
        has_overlay = "\toverlay\n" in Path("/proc/filesystems").read_text()
        driver = "overlay" if has_overlay else "vfs"  # which copies every file of every step
        storage = ["--root", str(folder / "images"), "--runroot", str(folder / "running"), "--storage-driver", driver]
        self._command = ["buildah", *storage]

    def run(self, *words: str) -> str:
        """What ``buildah WORDS`` prints on stdout; raises with its stderr when it fails."""
        done = subprocess.run([*self._command, *words], capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, f"buildah {' '.join(words)}: {done.stdout[-2000:]}{done.stderr[-3000:]}"
        return done.stdout

    def make_base(self, name: str, release: str) -> None:
        """The image ``name``: Debian's ``release`` with Python.

        Raises:
            Unavailable: no mirror has that release.
        """
        root = self._folder / "root"
        try:
            unpack_packages(fetch_packages(self._folder / "apt", release, PACKAGES), root, left_out=NOT_UNPACKED)
        except NoPackages as reason:
            raise Unavailable(str(reason)) from reason
        for place in ("etc/ssl/certs", "proc", "sys", "dev", "run", "tmp", "usr/local/bin", "var/tmp", "root"):
            (root / place).mkdir(parents=True, exist_ok=True)
        (root / "tmp").chmod(0o1777)
        (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
        (root / "etc/group").write_text("root:x:0:\n")
        container = self.run("from", "scratch").strip()
        self.run("add", "--quiet", container, str(root), "/")
        self.run("commit", "--quiet", container, name)
        self.run("rm", container)
        shutil.rmtree(root)
        shutil.rmtree(self._folder / "apt")

    def build(self, file: Path, context: Path, name: str, *arguments: str) -> None:
        """Every step of ``file``, made into the image ``name``."""
        words = ["build", "--pull-never", "--isolation", "chroot", "--network", "host", "--format", "docker"]
        for place in self._lent():
            words += ["--volume", f"{place}:{place}:ro"]
        if (settings := self._pip_configuration()) is not None:
            words += ["--volume", f"{settings}:/etc/pip.conf:ro"]
        self.run(*words, *arguments, "--tag", name, "--file", str(file), str(context))

    def container(self, image: str) -> str:
        """A container of ``image``, not started; its name."""
        return self.run("from", "--pull-never", image).strip()

    def inside(self, container: str, command: Sequence[str], *volumes: str) -> str:
        """What ``command`` prints in ``container``, as its image's user."""
        lent = [word for volume in volumes for word in ("--volume", volume)]
        return self.run("run", "--isolation", "chroot", "--network", "host", *lent, container, "--", *command)

    def close(self) -> None:
        """Removes all images and containers."""
        subprocess.run([*self._command, "rm", "--all"], capture_output=True)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _pip_configuration(self) -> Path | None:
        told = subprocess.run(["pip", "config", "list"], capture_output=True, text=True).stdout
        found: dict[str, str] = {}
        for line in told.splitlines():
            name, _, value = line.partition("=")
            found.setdefault(name.rpartition(".")[2], value.strip("'"))
        if not found:
            return None
        lines = [f"{name} = {value.replace(chr(92) + 'n', chr(10) + '  ')}\n" for name, value in found.items()]
        file = self._folder / "pip.conf"
        file.write_text("[global]\n" + "".join(lines))
        return file

    def _lent(self) -> list[str]:
        """Files and folders of this machine that pip's configuration names, and its certificates."""
        told = subprocess.run(["pip", "config", "list"], capture_output=True, text=True).stdout
        named = {Path(path) for path in re.findall(r"['\s=](/[^\s'\\]+)", told)}
        # The packages of an index lie beside its pages.
        named |= {Path(path).parent for path in re.findall(r"file://(/[^\s'\\]+)", told)}
        return sorted({str(path) for path in (*named, Path(CERTIFICATES)) if path.exists()})
