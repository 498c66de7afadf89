"""The broker of a run that ends by itself is there again, at the same address, and ends with the run."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import time
from pathlib import Path

import psutil
import pytest

from coordinator.brokers.mosquitto import find_mosquitto
from coordinator.brokers.opening import BrokerKeeper
from coordinator.brokers.process import BrokerProcess

pytestmark = pytest.mark.broker
KINDS = ["embedded", *(["mosquitto"] if find_mosquitto() else [])]


def wait_for_another(broker: BrokerProcess, first: int) -> int:
    """The pid of the broker after ``first``, once it listens."""
    give_up_at = time.monotonic() + 15.0
    while broker.pid == first or not broker._is_listening():
        assert time.monotonic() < give_up_at, "no other broker"
        time.sleep(0.05)
    return broker.pid


@pytest.mark.parametrize("kind", KINDS)
def test_broker_that_was_killed_is_started_again(kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with BrokerProcess(kind, tmp_path) as broker, caplog.at_level(logging.WARNING, "apportion.broker"):
        with BrokerKeeper(broker):
            address, first = broker.address, broker.pid
            os.kill(first, signal.SIGKILL)
            second = wait_for_another(broker, first)
            assert broker.address == address
            os.kill(second, signal.SIGKILL)
            third = wait_for_another(broker, second)
        assert "ended with status -9 and was started again" in caplog.text
    assert not psutil.pid_exists(third)


def test_broker_that_was_stopped_stays_so(tmp_path: Path) -> None:
    with BrokerProcess("embedded", tmp_path) as broker:
        assert broker.revive() is None
        broker.stop()
        assert broker.revive() is None


def test_broker_that_does_not_start_is_tried_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "broker"
    with BrokerProcess("embedded", folder) as broker, BrokerKeeper(broker), caplog.at_level(logging.WARNING):
        first = broker.pid
        away = shutil.move(folder, tmp_path / "away")
        os.kill(first, signal.SIGKILL)
        give_up_at = time.monotonic() + 10.0
        while "does not start" not in caplog.text and time.monotonic() < give_up_at:
            time.sleep(0.05)
        shutil.move(away, folder)
        wait_for_another(broker, first)
