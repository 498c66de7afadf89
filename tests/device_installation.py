"""A device's installation as its owner makes it: a fresh environment with ``apportion[onnxruntime]`` and no torch."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("profiles", "edge", "export", "coordinator", "apportion")


def install_device(folder: Path) -> Path:
    """Folder of the scripts of the environment made in ``folder``; skips where no package index can be reached."""
    source = copy_sources(folder / "source")
    subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True)
    scripts = folder / "venv" / "bin"
    pip = [str(scripts / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run([*pip, f"{source}[onnxruntime]"], capture_output=True, text=True, env=clean_environment())
    if done.returncode and ("No matching distribution" in done.stderr or "onnection" in done.stderr):
        pytest.skip(f"no package index can be reached: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    return scripts


def copy_sources(folder: Path) -> Path:
    """``folder`` with all that a wheel is built from."""
    for package in PACKAGES:
        ignored = shutil.ignore_patterns("__pycache__", "node_modules")
        shutil.copytree(ROOT / package, folder / package, ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE", "NOTICE"):
        shutil.copy(ROOT / name, folder / name)
    return folder


def clean_environment() -> dict[str, str]:
    """This process's environment without what would lend the device our packages."""
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
