"""``apportion schema [NAME]``: JSON Schema of run files and of what runs write, for editors and programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from coordinator.cli.command import parse_problem, verb

EXAMPLE = "Example: apportion schema run"


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("schema", epilog=EXAMPLE)(schema)


@verb("schema")
def schema(
    name: Annotated[str, typer.Argument(metavar="[NAME]", help="run, metrics, summary or result")] = "",
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="write all of them as NAME.json there")] = None,
) -> dict[str, Any]:
    """Print the JSON Schema of a run file (run), of metrics.jsonl, of summary.json, or of --json lines (result)."""
    from coordinator.reporting.schemas import SCHEMAS, schema_text

    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        for known in SCHEMAS:
            (out / f"{known}.json").write_text(schema_text(known), encoding="utf-8")
            print(out / f"{known}.json")
        return {}
    if name not in SCHEMAS:
        raise parse_problem("NAME", f"'{name}' is not known; known: {', '.join(SCHEMAS)}")
    print(schema_text(name), end="")
    return {}
