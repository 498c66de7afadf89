"""Helm's own linter, by the library that a wheel brings, on Debian 13's Python.

The wheel needs Python 3.12, which this environment need not have: it is fetched for Debian 13's and loaded by it, with
that system's own loader, so that nothing is installed and no root is needed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from platform import machine
from typing import Any

from tests.coordinator.fleet.private_namespace import Unavailable

WHEEL = "helm-sdkpy==0.1.32"
LINT = """
import asyncio, json, sys
from helm_sdkpy import Configuration
from helm_sdkpy.chart import Lint
print(json.dumps(asyncio.run(Lint(Configuration()).run(sys.argv[1]))))
"""


@dataclass(frozen=True)
class Helm:
    """Where Debian 13 and the wheel are unpacked."""

    root: Path
    packages: Path

    def lint(self, chart: Path) -> list[dict[str, Any]]:
        """What the linter found: severity (1 advice, 2 warning, 3 error) and path of each."""
        loader = next((self.root / "lib64").glob("ld-linux-*.so.*"), None) or next(self.root.glob("lib/ld-linux-*"))
        libraries = self.root / f"usr/lib/{machine()}-linux-gnu"
        python = next((self.root / "usr/bin").glob("python3.1[0-9]"))
        environment = os.environ | {"PYTHONHOME": str(self.root / "usr"), "PYTHONPATH": str(self.packages)}
        command = [str(loader), "--library-path", str(libraries), str(python), "-c", LINT, str(chart)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        found: list[dict[str, Any]] = json.loads(done.stdout)["Messages"]
        return found


def fetch_helm(root: Path, packages: Path) -> Helm:
    """Helm's library for the Python in ``root``, fetched into ``packages``.

    Raises:
        Unavailable: no index has it.
    """
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    command += ["--target", str(packages), "--python-version", "3.13", "--implementation", "cp"]
    command += ["--ignore-requires-python", "--only-binary=:all:"]
    for glibc in ("manylinux2014", "manylinux_2_17", "manylinux_2_28"):
        command += ["--platform", f"{glibc}_{machine()}"]
    done = subprocess.run([*command, WHEEL], capture_output=True, text=True)
    if done.returncode:
        raise Unavailable(f"pip finds no {WHEEL}: {done.stderr.strip().splitlines()[-1]}")
    return Helm(root, packages)
