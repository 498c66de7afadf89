"""A port that another process binds between choice and start: brokers then start at another one, some times."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.brokers import settings
from coordinator.brokers.listening import MOST_TRIES, PortTaken, listens, on_free_ports, tells_of_taken_port
from coordinator.brokers.mosquitto import find_mosquitto
from coordinator.brokers.process import BrokerProcess
from coordinator.brokers.settings import free_port
from edge.contracts.errors import BrokerUnreachable

KINDS = ["embedded", *(["mosquitto"] if find_mosquitto() else [])]


@pytest.fixture
def taken() -> Iterator[int]:
    """A port at which somebody else answers."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        yield other.getsockname()[1]


def choosing(monkeypatch: pytest.MonkeyPatch, *ports: int) -> list[int]:
    """Has brokers choose ``ports``, then free ones; what was chosen."""
    left, chosen = list(ports), list[int]()

    def choose() -> int:
        chosen.append(left.pop(0) if left else free_port())
        return chosen[-1]

    monkeypatch.setattr(settings, "free_port", choose)
    return chosen


@pytest.mark.broker
@pytest.mark.parametrize("kind", KINDS)
def test_broker_starts_at_another_port_where_its_first_was_lost(
    kind: str, taken: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = choosing(monkeypatch, taken)
    with BrokerProcess(kind, tmp_path) as broker:
        assert len(chosen) == 2
        assert broker.address.url.endswith(f":{chosen[1]}")
        assert listens(broker.pid, chosen[1:])
    # Whoever comes after a crash finds it there.
    assert settings.load_settings(tmp_path).port == chosen[1]


@pytest.mark.broker
@pytest.mark.skipif(find_mosquitto() is None, reason="mosquitto is not installed here (Debian: mosquitto)")
def test_broker_that_is_started_again_keeps_its_port(tmp_path: Path) -> None:
    with BrokerProcess("mosquitto", tmp_path) as broker:
        address = broker.address
        port = int(address.url.rpartition(":")[2])
        process = broker._process
        assert process is not None
        os.kill(broker.pid, signal.SIGKILL)
        process.wait()
        with socket.create_server(("127.0.0.1", port)), pytest.raises(PortTaken, match=f"did not start on port {port}"):
            broker.revive()
        assert broker.revive() == -signal.SIGKILL
        assert broker.address == address


def test_ports_are_chosen_so_many_times() -> None:
    tries, chosen = list[int](), list[int]()

    def start() -> None:
        tries.append(1)
        raise PortTaken("port 1")

    with pytest.raises(PortTaken):
        on_free_ports(start, lambda: chosen.append(1))
    assert (len(tries), len(chosen)) == (MOST_TRIES, MOST_TRIES - 1)


def test_other_failures_choose_no_port() -> None:
    def start() -> None:
        raise BrokerUnreachable("no certificate")

    with pytest.raises(BrokerUnreachable, match="no certificate"):
        on_free_ports(start, lambda: pytest.fail("another port"))


@pytest.mark.parametrize(
    ("log", "is_taken"),
    [
        ("1764214037: Error: Address already in use\n", True),
        (
            "OSError: [Errno 98] error while attempting to bind on address ('127.0.0.1', 1): address already in use",
            True,
        ),
        ("1764214037: Error: Unable to load server certificate\n", False),
        ("", False),
    ],
)
def test_words_of_brokers_for_a_taken_port(log: str, is_taken: bool) -> None:
    assert tells_of_taken_port(log) is is_taken


def test_listener_is_told_from_whoever_else_answers(taken: int) -> None:
    assert listens(os.getpid(), [taken])
    assert not listens(os.getpid(), [taken, free_port()])
    assert not listens(os.getppid(), [taken])


def test_where_the_system_does_not_tell_a_connection_is_enough(tmp_path: Path) -> None:
    assert listens(1, [1], proc=tmp_path)
