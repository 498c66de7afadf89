"""The wheel of this checkout in an environment of its own, in a folder that holds nothing of the repository."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.device_installation import clean_environment, copy_sources

BUILT_PAGE = "edge/web/dist"


@dataclass(frozen=True)
class InstalledWheel:
    """An environment with the wheel, and an empty folder to work in.

    Attributes:
        packages: where the wheel was installed.
        has_page: whether this checkout has the built page, which the wheel then has.
    """

    wheel: Path
    scripts: Path
    packages: Path
    folder: Path
    has_page: bool

    def run(self, *words: str, python: bool = False, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
        """``apportion WORDS``, or the environment's Python with them, which have to end."""
        return subprocess.run(
            self._command(words, python), **self._place(folder), capture_output=True, text=True, timeout=300
        )

    @contextmanager
    def started(self, *words: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
        """``apportion WORDS`` with what it prints; ended when the context is left."""
        pipe = subprocess.PIPE
        with subprocess.Popen(
            self._command(words, False), **self._place(folder), stdout=pipe, stderr=pipe, text=True
        ) as process:
            try:
                yield process
            finally:
                process.terminate()

    def _command(self, words: tuple[str, ...], python: bool) -> list[str]:
        return [str(self.scripts / ("python" if python else "apportion")), *words]

    def _place(self, folder: Path | None) -> dict[str, Any]:
        here = folder or self.folder
        own = {"PYTHONPATH": "."} if folder else {}
        return {"cwd": here, "env": clean_environment() | {"HOME": str(self.folder)} | own}

    def values(self, *words: str) -> dict[str, Any]:
        """The line of ``apportion WORDS --json``, which has to succeed."""
        done = self.run(*words, "--json")
        assert done.returncode == 0, done.stderr
        return dict(json.loads(done.stdout))


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> InstalledWheel:
    """The packages it requires are those of this environment; ours come from the wheel alone."""
    place = tmp_path_factory.mktemp("wheel")
    source = copy_sources(place / "source")
    has_page = (source / BUILT_PAGE / "index.html").is_file()
    if not has_page:  # what the build leaves, as small as can be
        (source / BUILT_PAGE / "assets").mkdir(parents=True, exist_ok=True)
        (source / BUILT_PAGE / "index.html").write_text("<!doctype html>\n<title>page</title>\n")
        (source / BUILT_PAGE / "licences.txt").write_text("none\n")
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-index", "--no-deps"]
    subprocess.run([*build, "--no-build-isolation", "--wheel-dir", str(place), str(source)], check=True)
    (wheel,) = place.glob("apportion-*.whl")
    shutil.rmtree(source)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place / "venv")], check=True)
    python = place / "venv" / "bin" / "python"
    where = "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages = Path(subprocess.check_output([str(python), "-c", where], text=True).strip())
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-index", "--no-deps"]
    subprocess.run([*install, "--disable-pip-version-check", str(wheel)], check=True)
    # A path in a .pth file is searched after the environment's own; .pth files in it (an editable install) are not.
    (packages / "requirements.pth").write_text(sysconfig.get_path("purelib") + "\n")
    folder = place / "empty"
    folder.mkdir()
    return InstalledWheel(wheel, python.parent, packages, folder, has_page)
