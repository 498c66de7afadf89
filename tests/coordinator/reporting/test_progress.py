"""What people see of a run: events as lines, a status below them on a terminal, now and then elsewhere."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import select
import struct
import termios
import threading
import time
from collections.abc import Iterator
from fcntl import ioctl
from pathlib import Path

import pytest

from coordinator.reporting.progress import STATUS_LINES, Progress, text_lines

CONTROL = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


def stamps_removed(text: str) -> list[str]:
    return [re.sub(r"^ *\d+\.\ds  ", "", line) for line in text.splitlines()]


def wait_until(text: io.StringIO, words: str, count: int = 1) -> None:
    give_up_at = time.monotonic() + 10
    while text.getvalue().count(words) < count:
        assert time.monotonic() < give_up_at, text.getvalue()
        time.sleep(0.01)


def test_say_writes_a_stamped_line_and_round_line_counts_from_1() -> None:
    stream = io.StringIO()
    progress = Progress(stream=stream)
    progress.say("hello")
    progress.round_line(2, 10, "done")
    assert re.match(r"^ +0\.\ds  hello\n", stream.getvalue())
    assert stamps_removed(stream.getvalue()) == ["hello", "[ROUND 3/10] done"]


def test_record_adds_one_object_per_event(tmp_path: Path) -> None:
    progress = Progress(stream=None, metrics=tmp_path / "metrics.jsonl")
    progress.record("round", round=0, loss=0.5)
    progress.record("round", round=1, loss=0.25)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [(line["event"], line["round"], line["loss"]) for line in lines] == [("round", 0, 0.5), ("round", 1, 0.25)]
    assert 0 <= lines[0]["at_s"] <= lines[1]["at_s"]


@pytest.mark.slow
def test_status_is_written_after_silence_and_then_ever_rarer() -> None:
    stream = io.StringIO()
    progress = Progress(stream=stream, quiet_s=0.6)
    with progress.watching(lambda: "waiting for devices"):
        progress.say("begun")
        wait_until(stream, "waiting", count=2)
    shown = stamps_removed(stream.getvalue())
    assert shown == ["begun", "waiting for devices", "waiting for devices"]
    begun, first, second = (float(s) for s in re.findall(r"^ *(\d+\.\d)s", stream.getvalue(), re.MULTILINE))
    assert first - begun >= 0.5
    assert second - first >= 1.1  # twice as long


def test_status_that_is_empty_is_not_written() -> None:
    stream, asked = io.StringIO(), threading.Event()

    def nothing() -> str:
        asked.set()
        return ""

    with Progress(stream=stream, quiet_s=0.0).watching(nothing):
        assert asked.wait(10)
    assert stream.getvalue() == ""


def test_quiet_progress_never_asks_for_the_status() -> None:
    with Progress(stream=None).watching(lambda: pytest.fail("asked")):
        time.sleep(0.05)


def test_text_lines_break_at_words_and_hang_below_the_text() -> None:
    lines = text_lines("   12.5s  [ROUND 5/10] 8 reports, loss 0.0270, accuracy server 0.96", 40)
    assert lines == ["   12.5s  [ROUND 5/10] 8 reports, loss", " " * 10 + "0.0270, accuracy server 0.96"]
    assert text_lines("    1.0s  a b\u00a01/2", 24) == ["    1.0s  a b 1/2"]


class Terminal:
    """A terminal of 80 columns whose output is read back."""

    def __init__(self) -> None:
        self._reader, writer = pty.openpty()
        ioctl(writer, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.stream = os.fdopen(writer, "w")
        self.shown = ""

    def read_until(self, words: str) -> str:
        """Everything written up to and with ``words``."""
        give_up_at = time.monotonic() + 10
        while words not in self.shown:
            assert time.monotonic() < give_up_at, self.shown
            if select.select([self._reader], [], [], 0.1)[0]:
                self.shown += os.read(self._reader, 65536).decode()
        seen, _, self.shown = self.shown.partition(words)
        return seen + words

    def close(self) -> None:
        self.stream.close()
        os.close(self._reader)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    monkeypatch.setenv("TERM", "xterm")
    for variable in ("COLUMNS", "NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(variable, raising=False)
    terminal = Terminal()
    yield terminal
    terminal.close()


@pytest.mark.slow
def test_status_on_a_terminal_follows_and_is_gone_at_the_end(terminal: Terminal) -> None:
    steps = iter(range(1, 10_000))
    progress = Progress(stream=terminal.stream)
    with progress.watching(lambda: f"device-00 {next(steps)}/9999"):
        terminal.read_until("device-00 1/9999")
        progress.say("device-01 refuses round 1 (device-refused): no power")
        # An event is written where the status was, and the status comes back below it.
        terminal.read_until("no power")
        terminal.read_until("device-00 3/9999")
    progress.say("[ROUND 1/3] done")
    end = terminal.read_until("done")
    assert "\x1b[?25h" in end  # the cursor is back
    assert "\x1b[2K" in end.rpartition("device-00")[2]  # the last status is erased
    last = CONTROL.sub("", end).splitlines()[-1]
    assert stamps_removed(last) == ["[ROUND 1/3] done"]


def test_status_on_a_terminal_is_cut_to_a_few_lines(terminal: Terminal) -> None:
    progress = Progress(stream=terminal.stream)
    with progress.watching(lambda: " ".join(f"device-{i:02}\u00a0training" for i in range(40))):
        shown = terminal.read_until(" ...")
    text = CONTROL.sub("", shown)
    lines = text.strip("\r\n").splitlines()
    assert len(lines) == STATUS_LINES
    assert all(len(line) <= 80 for line in lines)
    assert "\u00a0" not in text


def test_what_devices_say_does_not_reach_the_terminal_as_control_characters() -> None:
    stream = io.StringIO()
    Progress(stream=stream).say("pi-1 refuses: \x1b]52;c;x\x07\n  0.0s  round 3 of 3\r, für sich")
    assert stamps_removed(stream.getvalue()) == [r"pi-1 refuses: \x1b]52;c;x\x07\x0a  0.0s  round 3 of 3\x0d, für sich"]
