"""What a command shows while somebody waits: on a terminal, after a while, and never among results."""

from __future__ import annotations

import contextlib
import io
import re
import time
from contextlib import redirect_stderr

import pytest

from coordinator.cli.waiting import downloading, waiting
from tests.cli.conftest import Command


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    return Terminal()


def test_a_long_wait_shows_what_goes_on_and_for_how_long(terminal: Terminal) -> None:
    with redirect_stderr(terminal), waiting("building net[0]", quiet_s=0.01) as doing:
        time.sleep(0.3)
        doing("exporting net[0]")
        time.sleep(0.3)
    shown = terminal.getvalue()
    assert "building net[0]" in shown
    assert "exporting net[0]" in shown
    assert re.search(r"0:00:0\d", shown)


def test_a_short_wait_shows_nothing(terminal: Terminal) -> None:
    with redirect_stderr(terminal), waiting("building"):
        pass
    assert "building" not in terminal.getvalue()


def test_a_failure_ends_the_line_and_goes_on(terminal: Terminal) -> None:
    with redirect_stderr(terminal), contextlib.suppress(ValueError), waiting("building", quiet_s=0.0):
        time.sleep(0.1)
        raise ValueError("broken")
    assert terminal.getvalue().endswith("\x1b[2K")


def test_nothing_is_shown_where_stderr_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with waiting("building", quiet_s=0.0) as doing:
        doing("exporting")
    assert capsys.readouterr() == ("", "")


def test_colours_are_off_where_somebody_says_so(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    with redirect_stderr(terminal), waiting("building", quiet_s=0.0):
        time.sleep(0.2)
    assert "building" in terminal.getvalue()
    assert re.search(r"\x1b\[3\d", terminal.getvalue()) is None


def test_a_download_has_a_bar_on_a_terminal_and_a_line_for_each_tenth_elsewhere(terminal: Terminal) -> None:
    with redirect_stderr(terminal), downloading() as progress:
        progress("train.gz", 500_000, 1_000_000)
    assert "0.5/1.0 MB" in terminal.getvalue()
    plain = io.StringIO()
    with redirect_stderr(plain), downloading() as progress:
        for done in range(0, 1_000_001, 50_000):
            progress("train.gz", done, 1_000_000)
    assert len(plain.getvalue().splitlines()) == 11
    assert plain.getvalue().splitlines()[5] == "train.gz: 0.5 of 1.0 MB"


def test_results_that_are_piped_have_no_escapes(command: Command) -> None:
    outcome = command("doctor")
    assert "\x1b" not in outcome.out + outcome.err
