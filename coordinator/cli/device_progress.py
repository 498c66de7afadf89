"""What a command that works on devices shows while it does: a line per step, with its seconds, on stderr."""

from __future__ import annotations

import re
import sys
import time
from typing import TextIO

_STEP = re.compile(r"([a-z]+): (.*)")
_NAME_WIDTH, _TEXT_WIDTH = 12, 52


class Progress:
    """Lines of one device. Several devices write between each other's, so each begins with its name.

    A step is shown when it has ended. On a terminal that is this device's alone it is shown while it goes on, too.

    Args:
        name: the device's; empty: no names in front.
        is_alone: nobody else writes meanwhile.

    Attributes:
        notes: what was said beside the steps.
    """

    def __init__(self, name: str = "", *, width: int = 0, is_alone: bool = True, stream: TextIO | None = None) -> None:
        self._name, self._width = name, max(width, len(name))
        self.notes: list[str] = []
        self._stream = sys.stderr if stream is None else stream
        self._is_live = is_alone and self._stream.isatty()
        self._begun = time.monotonic()
        self._step: tuple[str, str, float] | None = None

    @property
    def seconds(self) -> float:
        """Since the beginning."""
        return time.monotonic() - self._begun

    def rename(self, name: str) -> None:
        """From here on the device is called ``name``, where it is named at all."""
        self._name = name if self._name else ""

    def __call__(self, text: str) -> None:
        """A line from whoever works: ``name: what it does`` begins a step and ends the one before it.

        Lines that are set in belong to the step that goes on, and are for terminals only; others are notes.
        """
        found = _STEP.fullmatch(text)
        if found is not None:
            self.end()
            self._step = (found[1], found[2], time.monotonic())
            self._show_live("")
        elif text.startswith("  ") and self._step is not None:
            self._show_live(text.strip())
        else:
            self.notes.append(text.strip())
            self.note(text)

    def end(self) -> None:
        """The step that goes on, if any, has ended."""
        if self._step is None:
            return
        name, text, since = self._step
        self._step = None
        self._write(f"{name:{_NAME_WIDTH}} {text:{_TEXT_WIDTH}} {time.monotonic() - since:6.1f} s")

    def note(self, text: str) -> None:
        """Lines that are no step."""
        for line in text.splitlines():
            self._write(line)

    def _write(self, line: str) -> None:
        clear = "\r\x1b[K" if self._is_live else ""
        front = f"{self._name:{self._width}}  " if self._width else ""
        print(f"{clear}{front}{line}".rstrip(" "), file=self._stream, flush=True)

    def _show_live(self, more: str) -> None:
        if self._is_live and self._step is not None:
            front = f"{self._name:{self._width}}  " if self._width else ""
            name, text, _ = self._step
            line = f"{front}{name:{_NAME_WIDTH}} {more or text} ..."
            print(f"\r\x1b[K{line[:100]}", end="", file=self._stream, flush=True)
