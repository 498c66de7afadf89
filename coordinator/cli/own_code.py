"""Code that a file names: run where whoever gives the command wrote the file, otherwise only when they say so.

``package.module:function`` is a name for any function that can be imported, ``subprocess:getoutput`` among them. Who
begins a run wrote its file. An artifact, a run's directory and a ledger on a server may be somebody else's.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from edge.contracts.errors import ConfigError

if TYPE_CHECKING:
    from coordinator.config.run_config import RunConfig

HELP = "run the code of your own that it names (package.module:function)"


def named_by(config: RunConfig) -> list[str]:
    """What a run file names that may be code of its author's: functions, and interpreters of trainers."""
    environments = [f"environment:{path}" for path in config.runtime.environments.values()]
    return [config.model.build, config.data.source, str(config.method.options.get("proxy", "")), *environments]


def check_code(names: Iterable[object], where: Path | str, *, is_allowed: bool) -> None:
    """Check that ``where`` names no code, only what comes with this release, or that it may.

    Raises:
        ConfigError: it does; nothing was imported.
    """
    if is_allowed:
        return
    if code := [str(name)[:200] for name in names if ":" in str(name)]:
        raise ConfigError(
            [f"{where}: names code to run, {', '.join(code)}; look at it, then give --allow-code if you trust it"]
        )


def is_own(run_dir: Path) -> bool:
    """Whether nobody else can have written the run in ``run_dir``."""
    mine = os.geteuid()
    for path in (run_dir, run_dir / "ledger.sqlite", run_dir / "config.toml"):
        if path.exists():
            found = path.stat()
            if found.st_uid != mine or stat.S_IMODE(found.st_mode) & 0o022:
                return False
    return True
