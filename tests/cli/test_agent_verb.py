"""``apportion agent``: the exit statuses of the command, and the runtimes there are."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge.runtimes import RUNTIMES
from tests.cli.conftest import Command

JOIN = ("agent", "--broker", "mqtt://127.0.0.1:9", "--federation", "fed", "--device", "pi-1", "--data", "nowhere")


def test_agent_unknown_runtime_lists_the_known_ones(command: Command, tmp_path: Path) -> None:
    outcome = command(*JOIN, "--store", tmp_path, "--runtime", "abacus")
    assert (outcome.status, outcome.out) == (2, "")
    assert "abacus" in outcome.err
    assert [name for name in RUNTIMES if name not in outcome.err.rpartition("abacus")[2]] == []


@pytest.mark.parametrize("argument", ["--colour", "--budget"])
def test_agent_unknown_or_shortened_argument_is_exit_2(argument: str, command: Command, tmp_path: Path) -> None:
    outcome = command(*JOIN, "--store", tmp_path, argument, "1")
    assert outcome.status == 2
    assert argument in outcome.err


@pytest.mark.parametrize(
    ("tags", "message"),
    [(["no/rth"], "--tag: 'no/rth' is not usable"), ([f"t{i}" for i in range(65)], "--tag: 65 tags given, at most 64")],
)
def test_agent_tags_that_no_hello_can_hold_are_exit_2(
    tags: list[str], message: str, command: Command, tmp_path: Path
) -> None:
    outcome = command(*JOIN, "--store", tmp_path, *(word for tag in tags for word in ("--tag", tag)))
    assert outcome.status == 2
    assert message in outcome.err


def test_agent_bug_is_exit_5_with_its_traceback(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("counted to zero")

    monkeypatch.setattr("edge.commands.agent.ArtifactStore", broken)
    assert command(*JOIN, "--store", tmp_path).status == 5
    assert "please report it" in caplog.text
    assert "ZeroDivisionError: counted to zero" in caplog.text


def test_agent_help_tells_every_exit_status(command: Command) -> None:
    shown = command("agent", "--help").out
    for status in ("0 stopped", "1 failed", "2 bad arguments", "3 connection", "4 timeout", "5 a bug"):
        assert status in shown
