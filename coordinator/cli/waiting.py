"""What a command shows while somebody waits: one line on stderr with the seconds, gone when there is a result."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator

QUIET_S = 1.0
"""A shorter wait shows nothing."""


@contextlib.contextmanager
def waiting(doing: str, *, quiet_s: float = QUIET_S) -> Iterator[Callable[[str], None]]:
    """While the context is open, shows ``doing`` and for how long, where stderr is a terminal; nothing elsewhere.

    Print results after the context, not in it: the line is written where the cursor is.

    Gives:
        what changes the text that is shown.
    """
    if not sys.stderr.isatty():
        yield lambda text: None
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    shown = Progress(
        SpinnerColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}", markup=False),
        console=Console(file=sys.stderr),
        transient=True,
        redirect_stdout=False,
        redirect_stderr=True,
    )
    task = shown.add_task(doing)
    timer = threading.Timer(quiet_s, shown.start)
    timer.daemon = True
    timer.start()
    try:
        yield lambda text: shown.update(task, description=text)
    finally:
        timer.cancel()
        timer.join()
        shown.stop()


@contextlib.contextmanager
def downloading() -> Iterator[Callable[[str, int, int], None]]:
    """While the context is open, shows how far files are: bars on a terminal, a line for each tenth elsewhere.

    Gives:
        what is called with (name of a file, bytes that are here, its size).
    """
    if not sys.stderr.isatty():
        tenths: dict[str, int] = {}

        def line(file: str, done: int, size: int) -> None:
            tenth = 10 * done // size
            if tenth > tenths.get(file, -1):
                tenths[file] = tenth
                print(f"{file}: {done / 1e6:.1f} of {size / 1e6:.1f} MB", file=sys.stderr)

        yield line
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(file=sys.stderr), redirect_stdout=False) as shown:
        tasks: dict[str, TaskID] = {}

        def bar(file: str, done: int, size: int) -> None:
            if file not in tasks:
                tasks[file] = shown.add_task(file, total=size)
            shown.update(tasks[file], completed=done)

        yield bar
