"""The file by which others see that an agent's loop turns."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from edge.supervisor.sign_of_life import EVERY_S, SignOfLife
from tests.edge.agent_bench import Bench
from tests.waiting import wait_until


def test_file_is_touched_again_when_its_time_has_passed(tmp_path: Path) -> None:
    file = tmp_path / "alive"
    sign = SignOfLife(file)
    sign.tick(100.0)
    os.utime(file, (1.0, 1.0))
    sign.tick(100.0 + EVERY_S - 0.1)
    assert file.stat().st_mtime == 1.0
    sign.tick(100.0 + EVERY_S)
    assert file.stat().st_mtime > 1.0


def test_place_that_takes_no_file_is_told_and_ends_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        SignOfLife(tmp_path / "nowhere" / "alive").tick(0.0)
    assert f"no sign of life at {tmp_path}/nowhere/alive" in caplog.text


def test_without_a_file_there_is_none(tmp_path: Path) -> None:
    SignOfLife(None).tick(0.0)
    assert list(tmp_path.iterdir()) == []


def test_agent_gives_signs_while_it_runs(bench: Bench, tmp_path: Path) -> None:
    bench.agent(alive_file=tmp_path / "alive")
    wait_until((tmp_path / "alive").exists)
