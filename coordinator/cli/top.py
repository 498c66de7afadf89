"""``apportion top RUN_DIR``: a run on the terminal, while it goes on or after it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from coordinator.cli.command import parse_problem, verb
from edge.contracts.errors import ConfigError

EXAMPLE = "Example: apportion top runs/first"


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("top", epilog=EXAMPLE)(top)


@verb("top")
def top(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="the directory of the run")],
) -> dict[str, Any]:
    """Follow a run on the terminal: devices, the open round, events. Keys pause, drain, stop, search; ? lists them."""
    from coordinator.history.history import History

    try:
        from coordinator.terminal.app import Top
    except ImportError as error:
        raise ConfigError([f"top: {error}"], hint="pip install 'apportion[terminal]'") from error

    with History.of(run_dir) as history:
        if not sys.stdout.isatty():
            raise parse_problem(
                "stdout", "no terminal; run it in one, or use apportion report and apportion watch, which need none"
            )
        Top(history).run()
    return {}
