"""The screen of ``apportion top``: looks at the run once a second and asks its coordinator for what is typed."""

from __future__ import annotations

from typing import ClassVar

from rich.text import Text
from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.events import Resize
from textual.widgets import DataTable, Footer, Input, Static

from coordinator.dashboard.fleet import DeviceView
from coordinator.history.history import History
from coordinator.rounds.control import Request, ask
from coordinator.terminal.device_lines import device_lines
from coordinator.terminal.look import Look, Looker
from coordinator.terminal.screens import Question, Window, keys_window
from coordinator.terminal.words import cells, columns_for, event_line, fleet_line, progress_line, round_line, run_line
from edge.contracts.errors import ApportionError

EVERY_S = 1.0
REST = 5.0
"""After a look so many times as long is rested: a fifth of a processor at most, for thousands of devices."""

_DONE: dict[Request, str] = {
    "pause": "asked to pause: no further round begins",
    "": "asked to go on",
    "drain": "asked to stop after the open round",
    "stop": "asked to stop now",
}


class Top(App[None]):
    """A run on the terminal; ends with q, and the run goes on."""

    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #head { height: 4; padding: 0 1; }
    DataTable { height: 1fr; scrollbar-size-vertical: 1; }
    #events { height: 6; padding: 0 1; border-top: solid $primary-darken-2; }
    Input { display: none; height: 1; border: none; padding: 0 1; }
    Input.shown { display: block; }
    Question, Window { align: center middle; background: $background 60%; }
    .window { width: 76; max-width: 96%; height: auto; padding: 1 2; border: round $primary; background: $surface; }
    .tall { height: 90%; width: 120; }
    .keys { margin-top: 1; color: $text-muted; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("p", "ask('pause')", "pause"),
        Binding("c", "ask('')", "continue"),
        Binding("d", "confirm('drain')", "drain"),
        Binding("s", "confirm('stop')", "stop"),
        Binding("l", "device", "log"),
        Binding("t", "filter('tag')", "tag"),
        Binding("slash", "filter('text')", "search", key_display="/"),
        Binding("q", "quit", "quit"),
        Binding("question_mark", "keys", "help", key_display="?"),
        Binding("escape", "clear_filters", show=False),
    ]

    def __init__(self, history: History) -> None:
        super().__init__()
        self.history = history
        self.shown_look: Look | None = None
        self._looker = Looker(history)
        self._wanted = {"tag": "", "text": ""}
        self._typing = "text"
        self._columns: tuple[str, ...] = ()
        self._rows: dict[str, tuple[Text, ...]] = {}

    def compose(self) -> ComposeResult:
        """Lines about the run, the table, the newest events, the keys."""
        yield Static("looking at the run ...", id="head")
        yield DataTable(cursor_type="row", zebra_stripes=True)
        yield Static(id="events")
        yield Input()
        yield Footer()

    def on_mount(self) -> None:
        """The first look begins at once."""
        self.title = "apportion top"
        self.query_one(DataTable).focus()
        self.look_again()

    @work(thread=True, exclusive=True, group="look")
    def look_again(self) -> None:
        """One look, in a thread: a slow disk or database does not hold the keys up."""
        try:
            look = self._looker.look()
        except ApportionError as error:
            self.call_from_thread(self._cannot_look, str(error))
            return
        self.call_from_thread(self._show, look)

    def _show(self, look: Look) -> None:
        self.shown_look = look
        self._draw()
        self.set_timer(max(EVERY_S, REST * look.took_s), self.look_again)

    def _cannot_look(self, problem: str) -> None:
        self.query_one("#head", Static).update(Text(f"the run cannot be read now: {problem}", style="red"))
        self.set_timer(5 * EVERY_S, self.look_again)

    def on_resize(self, event: Resize) -> None:
        """A wider terminal has more columns."""
        if self.shown_look is not None:
            self._draw()

    def _draw(self) -> None:
        look = self.shown_look
        if look is None:
            return
        views = [view for view in look.devices if self._is_shown(view)]
        lines = (run_line(look), round_line(look), progress_line(look), self._fleet_line(look, len(views)))
        self.query_one("#head", Static).update(Text("\n").join(lines))
        self._draw_table(views)
        events = self.query_one("#events", Static)
        room = max(1, events.size.height)
        width = max(20, events.size.width)
        shown = [event_line(event) for event in look.events[-room:]]
        for line in shown:
            line.truncate(width, overflow="ellipsis")
        events.update(Text("\n").join(shown))

    def _fleet_line(self, look: Look, shown: int) -> Text:
        line = fleet_line(look, shown)
        for name, value in self._wanted.items():
            if value:
                line.append(f"   {name}: {value}", style="bold yellow")
        return line

    def _draw_table(self, views: list[DeviceView]) -> None:
        """Changes cells that changed; begins anew where columns or devices are others."""
        table = self.query_one(DataTable)
        columns = columns_for(self.size.width)
        rows = {view.device: cells(view, columns) for view in views}
        if columns != self._columns or list(rows) != list(self._rows):
            at = self._device_at_cursor()
            table.clear(columns=columns != self._columns)
            if columns != self._columns:
                for column in columns:
                    table.add_column(column, key=column)
            for device, row in rows.items():
                table.add_row(*row, key=device)
            if at in rows:
                table.move_cursor(row=list(rows).index(at))
        else:
            for device, row in rows.items():
                for column, new, old in zip(columns, row, self._rows[device], strict=True):
                    if new != old:
                        table.update_cell(device, column, new, update_width=True)
        self._columns, self._rows = columns, rows

    def _is_shown(self, view: DeviceView) -> bool:
        tag, text = self._wanted["tag"], self._wanted["text"].lower()
        if tag and (view.live is None or tag not in view.live.tags):
            return False
        level = view.record.level if view.record else ""
        return text in f"{view.device} {view.status} {level} {view.why}".lower()

    def _device_at_cursor(self) -> str:
        table = self.query_one(DataTable)
        names = list(self._rows)
        return names[table.cursor_row] if 0 <= table.cursor_row < len(names) else ""

    def action_ask(self, asked: Request) -> None:
        """Leave the request for the run's coordinator."""
        self._carry_out(asked)

    def action_confirm(self, asked: Request) -> None:
        """The same, after a question: the run ends."""
        when = "now" if asked == "stop" else "after the open round"
        question = f"End the run {when}? It can be resumed with: apportion resume RUN_DIR"

        def answered(is_yes: bool | None) -> None:
            if is_yes:
                self._carry_out(asked)

        self.push_screen(Question(question), answered)

    @work(thread=True, group="ask")
    def _carry_out(self, asked: Request) -> None:
        try:
            with self.history.open_ledger() as ledger:
                ask(ledger, asked)
        except ApportionError as error:
            self.call_from_thread(self.notify, str(error), severity="error", timeout=8)
            return
        look = self.shown_look
        idle = "" if look is None or look.is_running else "; no coordinator runs: apportion resume goes on with it"
        self.call_from_thread(self.notify, _DONE[asked] + idle)

    def action_device(self) -> None:
        """The device under the cursor."""
        if (device := self._device_at_cursor()) and self.shown_look is not None:
            view = next((v for v in self.shown_look.devices if v.device == device), None)
            if view is not None:
                self._read_device(view)

    @work(thread=True, exclusive=True, group="device")
    def _read_device(self, view: DeviceView) -> None:
        try:
            lines = device_lines(self.history, view)
        except ApportionError as error:
            lines = [str(error)]
        self.call_from_thread(self.push_screen, Window(view.device, lines))

    def on_data_table_row_selected(self) -> None:
        """Enter on a row."""
        self.action_device()

    def action_filter(self, kind: str) -> None:
        """Ask for a tag or a text; the table follows while it is typed."""
        self._typing = kind
        line = self.query_one(Input)
        line.placeholder = "a tag; empty: all devices" if kind == "tag" else "a text in a row; empty: all devices"
        line.value = self._wanted[kind]
        line.add_class("shown")
        line.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Of a text every letter counts; a tag is looked for whole."""
        if self._typing == "text" and event.input.has_class("shown"):
            self._wanted["text"] = event.value.strip()
            self._draw()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """The filter stays; the table has the keys again."""
        self._wanted[self._typing] = event.value.strip()
        self._close_input()

    def action_clear_filters(self) -> None:
        """Everything is shown again."""
        self._wanted = {"tag": "", "text": ""}
        self._close_input()

    def _close_input(self) -> None:
        self.query_one(Input).remove_class("shown")
        self.query_one(DataTable).focus()
        self._draw()

    def action_keys(self) -> None:
        """What the keys do."""
        self.push_screen(keys_window())
