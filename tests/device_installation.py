"""A device's installation as its owner makes it: a fresh environment with ``apportion[onnxruntime]`` and no torch."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("profiles", "edge", "export", "coordinator")


def install_device(folder: Path) -> Path:
    """Folder of the scripts of the environment made in ``folder``; skips where no package index can be reached."""
    source = folder / "source"
    for package in PACKAGES:
        shutil.copytree(ROOT / package, source / package, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        if (ROOT / name).exists():
            shutil.copy(ROOT / name, source / name)
    subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True)
    scripts = folder / "venv" / "bin"
    pip = [str(scripts / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run([*pip, f"{source}[onnxruntime]"], capture_output=True, text=True, env=clean_environment())
    if done.returncode and ("No matching distribution" in done.stderr or "onnection" in done.stderr):
        pytest.skip(f"no package index can be reached: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    return scripts


def clean_environment() -> dict[str, str]:
    """This process's environment without what would lend the device our packages."""
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
