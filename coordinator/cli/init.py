"""``apportion init``: a project to begin with."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from coordinator.cli.command import verb

EXAMPLE = "Example: apportion init sensors"


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("init", epilog=EXAMPLE)(init)


@verb("init")
def init(
    folder: Annotated[
        Path, typer.Argument(metavar="[FOLDER]", help="new or without such files; else this one")
    ] = Path(),
    as_json: Annotated[bool, typer.Option("--json", help="one JSON line on stdout at the end")] = False,
) -> dict[str, Any]:
    """Write a project that runs as it is: a model, a data reader, a run file and a test."""
    from coordinator.project.writing import write_project

    written = write_project(folder)
    if not as_json:
        print(f"wrote {', '.join(path.name for path in written)} to {folder}; try:")
        change = "" if folder == Path() else f"cd {shlex.quote(str(folder))} && "
        print(f"{change}PYTHONPATH=. apportion simulate run.toml")
    return {"folder": str(folder), "files": [path.name for path in written]}
