"""``apportion top``: what the screen shows of a run, and what its keys do, by textual's own pilot."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest
from textual.pilot import Pilot
from textual.widgets import DataTable, Input, Static

from coordinator.history.history import History
from coordinator.history.live import LiveDevice, LiveState
from coordinator.ledger.ledger import Ledger
from coordinator.terminal.app import Top
from coordinator.terminal.screens import Question, Window
from tests.cli.conftest import Command, command
from tests.coordinator.history.small_ledger import small_ledger

__all__ = ["command"]

Script = Callable[[Top, "Pilot[None]"], Awaitable[None]]
MB = 2**20


@pytest.fixture(scope="module")
def ledger_file(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    file = tmp_path_factory.mktemp("ledger") / "ledger.sqlite"
    small_ledger(file).close()
    return file.read_bytes()


@pytest.fixture
def run_dir(ledger_file: bytes, tmp_path: Path) -> Path:
    (tmp_path / "ledger.sqlite").write_bytes(ledger_file)
    return tmp_path


def live(run_dir: Path, *, step: int = 3, also: int = 0) -> None:
    """A coordinator runs: pi-1 trains, pi-2 waits for its charger, pi-3 is away; and ``also`` further ones."""
    now = time.time()
    devices = [
        LiveDevice(
            device="pi-1", is_here=True, heard_at=now, state="training", step=step, total_steps=9, tags=("attic",)
        ),
        LiveDevice(device="pi-2", is_here=True, heard_at=now, state="waiting", reason="on battery", tags=("cellar",)),
        LiveDevice(device="pi-3", is_here=False, heard_at=now - 90, away_reason="connection lost"),
    ]
    devices += [LiveDevice(device=f"sim-{i:04}", is_here=True, heard_at=now) for i in range(also)]
    state = LiveState(written_at=now + 3600, deadline_left_s=41.0, devices=tuple(devices))
    (run_dir / "live.json").write_bytes(msgspec.json.encode(state))


def play(run_dir: Path, script: Script, size: tuple[int, int] = (80, 24)) -> None:
    """Start the screen, wait for its first look, and do what ``script`` does."""

    async def run() -> None:
        with History.of(run_dir) as history:
            app = Top(history)
            async with app.run_test(size=size) as pilot:
                await until(pilot, lambda: app.shown_look is not None)
                await pilot.pause()
                await script(app, pilot)

    asyncio.run(run())


async def until(pilot: Pilot[None], holds: Callable[[], bool]) -> None:
    give_up_at = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < give_up_at
        await pilot.pause(0.02)


def head(app: Top) -> str:
    return str(app.query_one("#head", Static).render())


def rows(app: Top) -> list[list[str]]:
    table = app.query_one(DataTable)
    return [[str(cell) for cell in table.get_row_at(index)] for index in range(table.row_count)]


def test_screen_shows_run_round_devices_and_events(run_dir: Path) -> None:
    live(run_dir)

    async def script(app: Top, pilot: Pilot[None]) -> None:
        told = head(app)
        assert "small  mlp under fedhm  running" in told
        assert "round 3 of 3" in told
        assert "collecting  1 of 3 reported  41 s left" in told
        assert "accuracy 0.5000 after round 1" in told
        assert "3 devices: 1 training, 1 waiting, 1 away" in told
        assert [row[:3] for row in rows(app)] == [
            ["pi-1", "training", "3/9"],
            ["pi-2", "waiting", ""],
            ["pi-3", "away", ""],
        ]
        assert rows(app)[1][-1] == "on battery"
        assert "round committed  round 2" in str(app.query_one("#events", Static).render())

    play(run_dir, script)


def test_screen_follows_the_run(run_dir: Path) -> None:
    live(run_dir)

    async def script(app: Top, pilot: Pilot[None]) -> None:
        live(run_dir, step=7)
        await until(pilot, lambda: rows(app)[0][2] == "7/9")

    play(run_dir, script)


def test_without_a_coordinator_the_last_orders_are_shown(run_dir: Path) -> None:
    async def script(app: Top, pilot: Pilot[None]) -> None:
        assert "no coordinator runs" in head(app)
        assert rows(app)[0][1] == "reported"

    play(run_dir, script)


@pytest.mark.parametrize(("size", "has_tags"), [((80, 24), False), ((140, 40), True)])
def test_nothing_is_cut_off_at_80_by_24_and_a_wide_terminal_has_more(
    run_dir: Path, size: tuple[int, int], has_tags: bool
) -> None:
    live(run_dir)

    async def script(app: Top, pilot: Pilot[None]) -> None:
        table = app.query_one(DataTable)
        assert table.virtual_size.width <= size[0]
        assert table.size.height >= 8
        assert all(len(line) <= size[0] - 2 for line in head(app).splitlines())
        assert ("tags" in [str(column.label) for column in table.columns.values()]) is has_tags
        await pilot.resize_terminal(*((140, 40) if size[0] == 80 else (80, 24)))
        await until(pilot, lambda: ("tags" in [str(c.label) for c in table.columns.values()]) is not has_tags)

    play(run_dir, script, size)


@pytest.mark.parametrize(("key", "asked"), [("p", "pause"), ("c", "")])
def test_pause_and_continue_ask_at_once(run_dir: Path, key: str, asked: str) -> None:
    live(run_dir)
    with Ledger.open(run_dir / "ledger.sqlite") as ledger:
        ledger.requests.put("control", "" if asked else "pause")

    async def script(app: Top, pilot: Pilot[None]) -> None:
        await pilot.press(key)
        await until(pilot, lambda: app.history.run().request == asked)

    play(run_dir, script)


@pytest.mark.parametrize(("key", "asked"), [("s", "stop"), ("d", "drain")])
def test_what_ends_a_run_is_asked_for_twice(run_dir: Path, key: str, asked: str) -> None:
    live(run_dir)

    async def script(app: Top, pilot: Pilot[None]) -> None:
        await pilot.press(key)
        assert isinstance(app.screen, Question)
        assert app.history.run().request == ""
        await pilot.press("y")
        await until(pilot, lambda: app.history.run().request == asked)

    play(run_dir, script)


@pytest.mark.parametrize("no", ["n", "escape", "enter"])
def test_every_other_answer_ends_nothing(run_dir: Path, no: str) -> None:
    live(run_dir)

    async def script(app: Top, pilot: Pilot[None]) -> None:
        await pilot.press("s", no)
        await pilot.pause()
        assert not isinstance(app.screen, Question)
        assert app.history.run().request == ""

    play(run_dir, script)


def test_a_finished_run_has_nothing_to_pause(run_dir: Path) -> None:
    with Ledger.open(run_dir / "ledger.sqlite") as ledger:
        ledger.move_federation("finished")

    async def script(app: Top, pilot: Pilot[None]) -> None:
        await pilot.press("p")
        await until(pilot, lambda: any("finished" in n.message for n in app._notifications))
        assert app.history.run().request == ""

    play(run_dir, script)


def test_log_of_the_device_under_the_cursor(run_dir: Path) -> None:
    live(run_dir)
    (run_dir / "devices" / "pi-2").mkdir(parents=True)
    (run_dir / "devices" / "pi-2" / "agent.log").write_text("first line\nbattery: [waiting]\n")

    async def script(app: Top, pilot: Pilot[None]) -> None:
        await pilot.press("down", "l")
        await until(pilot, lambda: isinstance(app.screen, Window))
        told = "\n".join(str(part.render()) for part in app.screen.query(Static))
        assert "pi-2" in told
        assert "waiting: on battery" in told
        assert "round 3: accepted" in told
        assert "battery: [waiting]" in told
        await pilot.press("escape", "up", "enter")
        await until(pilot, lambda: isinstance(app.screen, Window))
        told = "\n".join(str(part.render()) for part in app.screen.query(Static))
        assert "apportion device logs pi-1" in told

    play(run_dir, script)


def test_a_search_leaves_the_rows_with_the_text(run_dir: Path) -> None:
    live(run_dir)

    async def script(app: Top, pilot: Pilot[None]) -> None:
        await pilot.press("slash", *"wai")
        await until(pilot, lambda: [row[0] for row in rows(app)] == ["pi-2"])
        await pilot.press("enter")
        assert "showing 1" in head(app)
        assert "text: wai" in head(app)
        assert not app.query_one(Input).has_class("shown")
        await pilot.press("escape")
        assert len(rows(app)) == 3

    play(run_dir, script)


def test_a_tag_leaves_the_devices_that_have_it(run_dir: Path) -> None:
    live(run_dir)

    async def script(app: Top, pilot: Pilot[None]) -> None:
        await pilot.press("t", *"attic", "enter")
        await until(pilot, lambda: [row[0] for row in rows(app)] == ["pi-1"])
        await pilot.press("t")
        app.query_one(Input).value = ""
        await pilot.press("enter")
        await until(pilot, lambda: len(rows(app)) == 3)

    play(run_dir, script)


def test_help_names_every_key_and_q_ends(run_dir: Path) -> None:
    async def script(app: Top, pilot: Pilot[None]) -> None:
        await pilot.press("question_mark")
        await until(pilot, lambda: isinstance(app.screen, Window))
        told = "\n".join(str(part.render()) for part in app.screen.query(Static))
        assert all(word in told for word in ("pause", "continue", "drain", "stop", "log", "tag", "text", "quit"))
        await pilot.press("escape", "q")
        await until(pilot, lambda: not app.is_running)

    play(run_dir, script)


def test_the_row_under_the_cursor_stays_when_devices_come(run_dir: Path) -> None:
    live(run_dir)

    async def script(app: Top, pilot: Pilot[None]) -> None:
        await pilot.press("down", "down")
        live(run_dir, also=50)
        await until(pilot, lambda: len(rows(app)) == 53)
        assert app._device_at_cursor() == "pi-3"

    play(run_dir, script)


def test_names_are_no_markup(run_dir: Path) -> None:
    (run_dir / "live.json").write_bytes(
        msgspec.json.encode(
            LiveState(
                written_at=time.time() + 3600,
                deadline_left_s=0.0,
                devices=(LiveDevice(device="[red]x", is_here=True, heard_at=time.time(), unusable="[/bold] data"),),
            )
        )
    )

    async def script(app: Top, pilot: Pilot[None]) -> None:
        assert rows(app)[0][0] == "[red]x"
        assert rows(app)[0][-1] == "[/bold] data"

    play(run_dir, script)


def test_verb_needs_a_run_and_a_terminal(run_dir: Path, tmp_path: Path, command: Command) -> None:
    assert command("top", tmp_path / "none").status == 2
    outcome = command("top", run_dir)
    assert outcome.status == 2
    assert "no terminal" in outcome.err
