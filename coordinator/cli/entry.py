"""Where the command line begins: the help at once, a verb through its framework."""

from __future__ import annotations

import sys
from importlib.util import find_spec

from coordinator.cli.overview import show_overview

# An installation of the device agent has these files and not their packages: `edge.__main__` reads this error.
if find_spec("typer") is None:
    raise ImportError("No module named 'typer'")


def main(argv: list[str]) -> int:
    """Run ``apportion ARGV``; the exit status."""
    if argv in (["--help"], ["-h"]):
        show_overview(sys.stdout)
        return 0
    from coordinator.cli.command import main as run_verb

    return run_verb(argv)
