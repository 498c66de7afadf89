"""``apportion demo``: the main job on the embedded defaults, in a minute, on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from coordinator.cli.command import verb
from coordinator.cli.run import check_new, default_run_dir, resumable, show, with_seed

EXAMPLE = "Example: apportion demo --json"
CONFIG = Path(__file__).with_name("demo.toml")
"""Part of the package, so that an installed wheel has it; ``examples/digits.toml`` of a checkout is a link to it."""


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("demo", epilog=EXAMPLE)(demo)


@verb("demo")
def demo(
    run_dir: Annotated[Path | None, typer.Option(help="where the run leaves everything")] = None,
    seed: Annotated[int | None, typer.Option(help="instead of the example's seed")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="no progress on stderr")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON line on stdout at the end")] = False,
) -> dict[str, Any]:
    """Eight device processes in three memory budgets train a model that fits only the largest of them."""
    from coordinator.cli.assembly import start_run
    from coordinator.cli.open_run import RunOptions
    from coordinator.run_file.loading import load_config

    settings = with_seed(load_config(CONFIG), seed)
    folder = run_dir or default_run_dir(settings)
    check_new(folder)
    with resumable(folder):
        summary = start_run(settings, folder, RunOptions(quiet=quiet))
    show(summary, quiet=quiet, as_json=as_json)
    return summary
