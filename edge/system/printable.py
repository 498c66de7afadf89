"""Text of others (devices, files, servers) as a terminal or a log may show it: without what a terminal obeys."""

from __future__ import annotations

import logging
import sys


def printable(text: str, *, keep: str = "") -> str:
    """``text`` with everything that is no printable character written out, line ends too; ``keep`` stays."""
    return "".join(c if c.isprintable() or c in keep else f"\\x{ord(c):02x}" for c in text)


def printable_lines(text: str) -> str:
    """As :func:`printable`, in the lines it has: for messages of several, none of which says who speaks."""
    return printable(text, keep="\n")


class PrintableFormatter(logging.Formatter):
    """A record is one line, whatever its message holds; tracebacks keep theirs."""

    def format(self, record: logging.LogRecord) -> str:
        """The record's text."""
        shown = logging.makeLogRecord(record.__dict__)
        shown.msg, shown.args = printable(record.getMessage()), None
        return printable_lines(super().format(shown))


def log_to_stderr(level: int, form: str = "%(levelname)s:%(name)s:%(message)s") -> None:
    """As :func:`logging.basicConfig`, of printable lines."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(PrintableFormatter(form))
    logging.basicConfig(level=level, handlers=[handler])


def escape_last_resort() -> None:
    """What is logged where nobody configured a log, as in a coordinator, is printable lines too."""
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(PrintableFormatter("%(message)s"))
