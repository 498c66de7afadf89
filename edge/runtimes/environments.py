"""Where a runtime's trainer runs: the environment that holds the runtime, which need not be the agent's own.

Some wheels overwrite each other, and one goes without its dependencies on a device, so ``make runtime-NAME`` builds one
environment per runtime, ``.venv-NAME``, beside the one the command runs in.
"""

from __future__ import annotations

import sys
from pathlib import Path

from edge.contracts.errors import ConfigError


def runtime_python(runtime: str, environment: str = "") -> Path:
    """The interpreter that runs trainers, and where need be exporters, of ``runtime``.

    Args:
        environment: folder of a virtual environment; empty: ``.venv-NAME`` beside this one when it is there (``_`` in
            the runtime's name is ``-`` in the folder's), else this interpreter.

    Raises:
        ConfigError: ``environment`` is given and holds no interpreter.
    """
    if environment:
        python = Path(environment) / "bin" / "python"
        if not python.exists():
            make = f"make runtime-{_folder(runtime)}"
            raise ConfigError([f"$.runtime.environment: {environment} has no bin/python; make it with `{make}`"])
        return python
    beside = Path(sys.prefix).parent / f".venv-{_folder(runtime)}" / "bin" / "python"
    return beside if beside.exists() else Path(sys.executable)


def _folder(runtime: str) -> str:
    return runtime.replace("_", "-")
