"""What a person sees while a federation runs: one line per event on stderr, and metrics.jsonl beside it.

On a terminal the status stays below the events and follows the devices; elsewhere the status is an ordinary line,
written only when nothing else was for a while. What the status says is :mod:`coordinator.rounds.status`'s.
"""

from __future__ import annotations

import contextlib
import json
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from coordinator.config.tracking import LogForm
from coordinator.reporting.json_lines import json_line
from edge.system.printable import printable

if TYPE_CHECKING:
    from rich.console import Console

MB = 1e6
QUIET_S = 5.0
"""Silence after which the status is written where there is no terminal; doubles with every status, to a minute."""

LONGEST_QUIET_S = 60.0
REFRESHES_PER_S = 2.0
STATUS_LINES = 4
"""The status on a terminal is cut here: twelve devices at 80 columns."""

NO_BREAK = "\u00a0"
"""A blank where a line is not broken; written as an ordinary one."""

_INDENT = 10


class Progress:
    """Writes live lines to ``stream`` and one JSON object per event to ``metrics``; None turns either off.

    Args:
        form: of the lines; ``json``: an object each (:mod:`coordinator.reporting.json_lines`), events too, no live
            status.
    """

    def __init__(
        self,
        *,
        stream: TextIO | None = sys.stderr,
        metrics: Path | None = None,
        quiet_s: float = QUIET_S,
        form: LogForm = "text",
    ) -> None:
        self._form = form
        self._stream = stream
        self._metrics = metrics
        self._started = time.monotonic()
        self._quiet_s = self._patience_s = quiet_s
        self._written_at = self._started
        self._console: Console | None = None
        self._lock = threading.Lock()

    def say(self, text: str) -> None:
        """One line for people."""
        self._write(text)
        self._patience_s = self._quiet_s

    def invite(self, lines: Sequence[str]) -> None:
        """Lines for people, the last of them to be copied: it stands alone, with no time before it, broken nowhere."""
        for line in lines[:-1]:
            self.say(line)
        if lines and self._stream is not None:
            self._print(printable(lines[-1]) if self._form == "text" else json_line("said", lines[-1]))

    def record(self, event: str, **values: Any) -> None:
        """One line of ``metrics.jsonl``."""
        line = {"event": event, "at_s": round(time.monotonic() - self._started, 3), **values}
        if self._form == "json" and self._stream is not None:
            self._print(json_line(event, **values))
        if self._metrics is not None:
            with self._metrics.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line, sort_keys=True) + "\n")

    def round_line(self, index: int, rounds: int, text: str) -> None:
        """``[ROUND 3/10] text``; rounds are counted from 1 for people."""
        self.say(f"[ROUND {index + 1}/{rounds}] {text}")

    @contextlib.contextmanager
    def watching(self, status: Callable[[], str]) -> Iterator[None]:
        """Shows what ``status`` gives (nothing when empty) while the context is open; it is called from a thread."""
        if self._stream is None:
            yield
            return
        show: Callable[[str], None] = self._show_quietly
        with contextlib.ExitStack() as stack:
            if self._stream.isatty() and self._form == "text":
                show = stack.enter_context(self._status_line(self._stream))
            stack.enter_context(_repeating(lambda: show(status()), 1 / REFRESHES_PER_S))
            yield

    @contextlib.contextmanager
    def _status_line(self, stream: TextIO) -> Iterator[Callable[[str], None]]:
        """Gives what writes the status below all lines; it is gone when the context ends."""
        from rich.console import Console
        from rich.live import Live
        from rich.text import Text

        def show(text: str) -> None:
            lines = text_lines(self._stamped(text), console.width) if text else []
            if len(lines) > STATUS_LINES:
                lines[STATUS_LINES - 1 :] = [lines[STATUS_LINES - 1] + " ..."]
            shown = Text("\n".join(lines), style="dim", no_wrap=True, overflow="ellipsis")
            live.update(shown, refresh=True)

        console = Console(file=stream, highlight=False, markup=False, emoji=False)
        with Live(console=console, auto_refresh=False, transient=True, redirect_stdout=False) as live:
            self._console = console
            try:
                yield show
            finally:
                self._console = None

    def _show_quietly(self, text: str) -> None:
        if text and time.monotonic() - self._written_at >= self._patience_s:
            self._write(text)
            self._patience_s = min(LONGEST_QUIET_S, 2 * self._patience_s)

    def _write(self, text: str) -> None:
        line, console = self._stamped(text), self._console
        self._written_at = time.monotonic()
        if self._form == "json" and self._stream is not None:
            self._print(json_line("said", text.replace(NO_BREAK, " ")))
            return
        if console is not None:
            for part in text_lines(line, console.width):
                console.print(part, soft_wrap=True)
        elif self._stream is not None:
            self._print(line.replace(NO_BREAK, " "))

    def _print(self, line: str) -> None:
        if self._stream is not None:
            with self._lock:
                print(line, file=self._stream, flush=True)

    def _stamped(self, text: str) -> str:
        return f"{time.monotonic() - self._started:7.1f}s  {printable(text, keep=NO_BREAK)}"


@contextlib.contextmanager
def _repeating(action: Callable[[], None], every_s: float) -> Iterator[None]:
    """Calls ``action`` in a thread while the context is open."""
    ended = threading.Event()

    def repeat() -> None:
        while not ended.is_set():
            began = time.monotonic()
            action()
            # Of thousands of devices the status takes a while: a twentieth of a processor is enough for it.
            ended.wait(max(every_s, 20 * (time.monotonic() - began)))

    thread = threading.Thread(target=repeat, name="status", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(5.0)


def text_lines(line: str, width: int) -> list[str]:
    """``line`` broken at words to ``width`` columns, what follows indented to where the text begins."""
    wrapped = textwrap.wrap(
        line,
        max(width, 2 * _INDENT),
        subsequent_indent=" " * _INDENT,
        break_on_hyphens=False,
        break_long_words=False,
    )
    return [part.replace(NO_BREAK, " ") for part in wrapped] or [line]


def megabytes(count: int) -> str:
    """Bytes as ``12.3 MB`` (10^6)."""
    return f"{count / MB:.1f} MB"
