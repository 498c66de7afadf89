"""``apportion compare RUN RUN ...``: runs and simulations side by side, seeds of one configuration together."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coordinator.cli.command import parse_problem, verb
from coordinator.cli.waiting import waiting

if TYPE_CHECKING:
    from coordinator.reporting.comparison.comparison import Comparison

EXAMPLE = "Example: apportion compare runs/first runs/second --out compare.html"


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("compare", epilog=EXAMPLE)(compare)


@verb("compare")
def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN_DIR...", help="directories of runs or simulations")],
    target: Annotated[
        float | None, typer.Option(help="score of the columns about reaching one; unset: the best that all reached")
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="also write the comparison as a page")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON line on stdout at the end")] = False,
) -> dict[str, Any]:
    """Lay runs side by side: what differs in their run files, their scores, what each cost to reach the same score."""
    from coordinator.reporting.comparison.comparison import compare as comparison_of
    from coordinator.reporting.comparison.page import comparison_page
    from coordinator.reporting.reading import read_subject

    if len(runs) < 2:
        raise parse_problem("RUN_DIR...", f"{len(runs)} run given; name two or more, such as runs/first runs/second")
    with waiting(f"reading {len(runs)} runs"):
        comparison = comparison_of([read_subject(run) for run in runs], target=target)
        if out is not None:
            out.parent.mkdir(parents=True, exist_ok=True)
            out.write_text(comparison_page(comparison), encoding="utf-8")
    if not as_json:
        _show(comparison)
        if out is not None:
            print(out)
    return {**comparison.values(), **({} if out is None else {"file": str(out)})}


def _show(comparison: Comparison) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from coordinator.reporting.comparison.words import difference_table, result_table

    console = Console(highlight=False, markup=False, emoji=False, soft_wrap=False)
    for objection in comparison.objections:
        console.print(Text(f"note: {objection}"))
    heads, rows = result_table(comparison)
    # A column for each configuration: a terminal is narrow, and there are few of them.
    results = [[cell.replace(" (", "\n(") for cell in column] for column in zip(heads, *rows, strict=True)]
    named = difference_table(comparison)
    for title, columns, lines in (("what differs", *named), ("results", results[0], results[1:])):
        if not lines:
            continue
        shown = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, title_style="bold")
        for index, head in enumerate(columns):
            shown.add_column(Text(head), overflow="fold", justify="left" if index == 0 else "right")
        for line in lines:
            shown.add_row(*(Text(cell) for cell in line))
        console.print(shown)
    if not comparison.differing:
        console.print(Text("nothing differs but the seed"))
