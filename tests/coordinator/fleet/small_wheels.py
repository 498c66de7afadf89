"""Wheels that need no index: a module of one line, and the pip that Python itself brings."""

from __future__ import annotations

import ensurepip
import hashlib
import zipfile
from pathlib import Path

import pytest


def small_wheel(folder: Path, name: str, source: bytes) -> tuple[str, str]:
    """A wheel with the module ``name``: its file name and SHA-256."""
    path, info = folder / f"{name}-1.0-py3-none-any.whl", f"{name}-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}.py", source)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", f"{name}.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")
    return path.name, hashlib.sha256(path.read_bytes()).hexdigest()


def bundled_pip() -> Path:
    """The wheel; skips where this Python came without it."""
    found = sorted((Path(ensurepip.__file__).parent / "_bundled").glob("pip-*.whl"))
    if not found:
        pytest.skip("this Python brings no pip wheel of its own")
    return found[0]
