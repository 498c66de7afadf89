"""What a coordinator ran on and with, as it goes into ``summary.json``: releases, processor, system."""

from __future__ import annotations

import importlib.metadata
import os
import platform

from edge.contracts.release import RELEASE
from edge.runtimes import RUNTIMES, traits_of
from profiles.probe import probe

PACKAGES = ("torch", "numpy", "scipy", "sqlalchemy")
"""Beside those of runtimes."""


def environment() -> dict[str, str]:
    """Of this process; a package that is not installed is left out."""
    found = {"apportion": RELEASE, "Python": platform.python_version()}
    for name in dict.fromkeys((*PACKAGES, *(traits_of(runtime).distribution for runtime in RUNTIMES))):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    profile = probe("")
    found["processor"] = f"{profile.cpu_model or platform.machine()}, {os.cpu_count() or 1} processors"
    found["system"] = f"{platform.system()} {platform.release()} ({platform.machine()})"
    return found
