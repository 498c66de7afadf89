"""The ExecuTorch session library cross-built for the emulated boards, by the command that docs/runtimes.md gives."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.arm.boards import FLAGS
from tests.arm.userland import COMPILER, SYSTEM_PACKAGES, Unavailable, Userland


def cross_build(userland: Userland) -> Path:
    """The library, put with its trainer where the device looks for it.

    Raises:
        Unavailable: no executorch wheel in the userland, or no cross compiler.
    """
    if not (userland.packages / "executorch").is_dir():
        raise Unavailable("executorch is not installed here: pip install 'apportion[executorch]'")
    if shutil.which(COMPILER) is None:
        raise Unavailable(f"{COMPILER} is not installed (Debian: {SYSTEM_PACKAGES[COMPILER]}) and nobody here is root")
    # The device's packages come first in the search path: the build finds its sources and its wheel there, and imports
    # nothing compiled.
    environment = os.environ | {
        "CXX": COMPILER,
        "APPORTION_NATIVE_FLAGS": FLAGS,
        "PYTHONPATH": str(userland.packages),
    }
    done = subprocess.run(
        [sys.executable, "-m", "edge.runtimes.executorch.build"],
        cwd=userland.packages,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    built = Path(done.stdout.strip())
    installed = userland.root / "usr/lib/apportion" / built.name
    installed.parent.mkdir(exist_ok=True)
    for path in (built, trainer_of(built)):
        shutil.copy(path, installed.parent)
    return installed


def trainer_of(library: Path) -> Path:
    """The trainer without Python that was built beside ``library``."""
    (found,) = library.parent.glob(f"{library.stem}-*.trainer")
    return found
