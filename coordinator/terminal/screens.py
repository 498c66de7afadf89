"""Screens above the table: a question before something that ends a run, a device with its log, the keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

KEYS = (
    ("p", "pause: no further round begins; the open one goes on"),
    ("c", "continue a paused run"),
    ("d", "drain: the run stops after the open round; it can be resumed"),
    ("s", "stop now; the run can be resumed, and devices keep their work"),
    ("l, Enter", "the device under the cursor: its work and its agent's log"),
    ("t", "show the devices with a tag only; empty: all"),
    ("/", "show the devices whose row has a text only; empty: all"),
    ("Escape", "take filters back, close a window"),
    ("q", "quit; the run goes on"),
)


class Question(ModalScreen[bool]):
    """Asks whether to do it; y does, everything else does not."""

    BINDINGS: ClassVar[list[BindingType]] = [
        ("y", "answer(True)", "yes"),
        ("n,escape,enter,q", "answer(False)", "no"),
    ]

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def compose(self) -> ComposeResult:
        """The question and its two keys."""
        with Vertical(classes="window"):
            yield Static(Text(self._text))
            yield Static(Text.assemble(("y", "bold"), "  yes      ", ("n", "bold"), "  no"), classes="keys")

    def action_answer(self, is_yes: bool) -> None:
        """Gives the answer to whoever asked."""
        self.dismiss(is_yes)


class Window(ModalScreen[None]):
    """Text that is read and closed again."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape,q,l,question_mark,enter", "close", "close")]

    def __init__(self, title: str, lines: Sequence[Text | str]) -> None:
        super().__init__()
        self._title, self._lines = title, lines

    def compose(self) -> ComposeResult:
        """The title, the text, how to close it."""
        with Vertical(classes="window tall"):
            yield Static(Text(self._title, style="bold"))
            with VerticalScroll():
                yield Static(Text("\n").join(Text(line) if isinstance(line, str) else line for line in self._lines))
            yield Static(Text("Escape closes this"), classes="keys")

    def on_mount(self) -> None:
        """The end of a log is what one wants to see; keys scroll it."""
        area = self.query_one(VerticalScroll)
        area.focus()
        area.scroll_end(animate=False)

    def action_close(self) -> None:
        """Back to the table."""
        self.dismiss(None)


def keys_window() -> Window:
    """What every key does."""
    return Window("Keys", [Text.assemble((f"{key:10}", "bold"), what) for key, what in KEYS])
