"""The table of ``apportion doctor MODEL`` as people see it: one line per row from 110 columns, two below."""

from __future__ import annotations

import os
from string import ascii_lowercase
from typing import TYPE_CHECKING, TextIO

from coordinator.cli.doctor_model import ModelReport, Row, layer_name, refusal

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

WIDE = 110
_NO_TERMINAL = 120
_NARROW_NAMES = 19
_STYLES = {"trains": "green", "rewritten": "green", "no gradient": "bold red", "refused": "bold red", "not seen": "dim"}


def print_report(report: ModelReport, stream: TextIO, *, width: int | None = None) -> None:
    """Write the table, what its words mean, and what each runtime trains."""
    from rich.console import Console

    if width is None and not stream.isatty() and "COLUMNS" not in os.environ:
        width = _NO_TERMINAL
    console = Console(file=stream, highlight=False, width=width)
    console.print(_table(report, is_wide=console.width >= WIDE))
    if report.refusals():
        console.print()
    for number, (sentence, runtimes) in enumerate(report.refusals().items(), 1):
        _item(console, f"{number}", f"on {', '.join(runtimes)}: {sentence}")
    if report.passes:
        console.print("\nrewritten: the exporter puts other operations of the same meaning in their place")
        for letter, (name, meaning) in zip(ascii_lowercase, report.passes.items(), strict=False):
            _item(console, letter, f"{name}: {meaning}", column=2)
    if report.unreached:
        names = ", ".join(report.unreached)
        console.print(f"\nno gradient reaches {names}: use them in the forward pass, or freeze them")
    console.print()
    for name, count in report.trains.items():
        whole = "trains the whole model" if count == report.layers else f"trains {count} of {report.layers} layers"
        _item(console, name, whole, column=22)
    for name, reason in report.missing.items():
        _item(console, name, f"cannot be asked here: {reason}", column=22)


def _item(console: Console, head: str, text: str, *, column: int = 4) -> None:
    """``head`` and ``text`` beside each other, the text wrapped in its own column."""
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(width=column, no_wrap=True)
    grid.add_column()
    grid.add_row(Text(head, justify="right" if head.isdigit() else "left"), Text(text))
    console.print(grid)


def _table(report: ModelReport, *, is_wide: bool) -> Table:
    from rich import box
    from rich.table import Table

    runtimes = list(report.trains)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False)
    for heading in ("layer", "type", "takes → gives") if is_wide else ("layer\ntype", "takes\n→ gives"):
        table.add_column(heading, overflow="fold", min_width=_NARROW_NAMES if "\ntype" in heading else None)
    table.add_column("para-\nmeters", justify="right", no_wrap=True)
    for name in runtimes:
        split = name.replace("_", "\n")
        table.add_column(split if is_wide else split.replace("xruntime", "x\nruntime"), no_wrap=True)
    numbers = {sentence: str(number) for number, sentence in enumerate(report.refusals(), 1)}
    letters = dict(zip(report.passes, ascii_lowercase, strict=False))
    for row in report.rows:
        shapes = f"{' '.join(row.takes) or '-'}{' ' if is_wide else chr(10)}→ {' '.join(row.gives) or '-'}"
        head = (layer_name(row), _kind(row), shapes) if is_wide else (f"{layer_name(row)}\n{_kind(row)}", shapes)
        cells = [_cell(row, name, numbers | letters, " " if is_wide else "\n") for name in runtimes]
        table.add_row(*head, f"{row.parameters:,}" if row.parameters else "-", *cells)
    return table


def _kind(row: Row) -> str:
    return f"{row.kind}: {', '.join(row.operations)}" if row.operations else row.kind


def _cell(row: Row, runtime: str, marks: dict[str, str], between: str) -> Text:
    """The state, and where to read on: letters of passes, the number of a refusal."""
    from rich.text import Text

    verdict = row.verdicts[runtime]
    names = verdict.passes if verdict.is_trained else [refusal(row, verdict)]
    text = between.join(part for part in (verdict.state, ",".join(sorted(marks[name] for name in names))) if part)
    return Text(text if between == " " else text.replace(" ", between), style=_STYLES[verdict.state])
