"""``apportion --help``: every verb in groups, a line each. Imports little, so that it comes at once."""

from __future__ import annotations

import os
from typing import TextIO

from coordinator.cli.verbs import GROUPS, VERBS

EXAMPLE = "Example: apportion demo"
_OPTIONS = {
    "--version": "the release",
    "--install-completion": "let this shell complete verbs and options",
    "--show-completion": "print what that would install",
    "--help": "this list; apportion VERB --help shows a verb's own",
}


def overview(*, is_bold: bool = False) -> str:
    """The help as text, its last line an example.

    Args:
        is_bold: headings stand out, for a terminal.
    """
    width = 2 + max(len(name) for name in VERBS)

    def heading(text: str) -> str:
        return f"\x1b[1m{text}\x1b[0m" if is_bold else text

    lines = ["Usage: apportion VERB [OPTIONS] [ARGUMENTS]", ""]
    lines += ["  Train a model that is too big for every device, on the devices.", ""]
    for title, verbs in GROUPS.items():
        lines += [heading(title), *(f"  {name:{width}}{verb.line}" for name, verb in verbs.items()), ""]
    lines += [heading("Options"), *(f"  {name:22}{text}" for name, text in _OPTIONS.items()), ""]
    return "\n".join([*lines, EXAMPLE])


def show_overview(stream: TextIO) -> None:
    """Print the help, with bold headings where that is wanted."""
    print(overview(is_bold=wants_style(stream)), file=stream)


def wants_style(stream: TextIO) -> bool:
    """Whether ``stream`` is a terminal that shows styles, and nobody said no (https://no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM", "") not in ("", "dumb")
