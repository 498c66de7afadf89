"""``apportion report RUN_DIR``: what a run or simulation came to, as one page; also of one that is under way."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from coordinator.cli.command import verb
from coordinator.cli.waiting import waiting

EXAMPLE = "Example: apportion report runs/first --out report.html"


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("report", epilog=EXAMPLE)(report)


@verb("report")
def report(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="the directory of a run or a simulation")],
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="where the page is written; RUN_DIR/report.html if unset")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON line on stdout at the end")] = False,
) -> dict[str, Any]:
    """Write what a run came to as one HTML page: plots, devices, cost, how to repeat it. An unfinished run: so far."""
    from coordinator.reporting.reading import read_subject
    from coordinator.reporting.report import report as page

    with waiting(f"reading {run_dir}"):
        subject = read_subject(run_dir)
        file = out or run_dir / "report.html"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(page(subject), encoding="utf-8")
    if not as_json:
        so_far = "" if subject.is_finished else f" (so far: {len(subject.rounds)} of {subject.rounds_asked} rounds)"
        print(f"{file}{so_far}")
    return {"file": str(file), "state": subject.state, "rounds": len(subject.rounds)}
