"""Leases and what processes tell each other: one owner at a time, and no write without the lease."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.ledger.coordination import Presence
from coordinator.ledger.ledger import Ledger
from edge.contracts.errors import LeaseLost, LedgerError
from edge.serving.traffic import Traffic
from tests.coordinator.ledger.test_rounds import FEDERATION, collecting

LONG_S = 60.0


@pytest.fixture
def ledger(ledger_place: Path | str) -> Iterator[Ledger]:
    with Ledger.create(ledger_place, federation=FEDERATION, config="", seed=0) as opened:
        yield opened


@pytest.fixture
def other(ledger: Ledger) -> Iterator[Ledger]:
    """The same ledger as another process has it."""
    with Ledger.open(ledger.path, federation=FEDERATION) as opened:
        yield opened


def test_lease_has_one_owner_until_it_is_released(ledger: Ledger, other: Ledger) -> None:
    assert ledger.leases.take("shard-0", "one", LONG_S) == 1
    assert other.leases.take("shard-0", "two", LONG_S) is None
    assert other.leases.take("shard-1", "two", LONG_S) == 1
    assert ledger.leases.take("shard-0", "one", LONG_S) == 1
    assert not other.leases.renew("shard-0", "two", 1, LONG_S)
    assert not other.leases.release("shard-0", "two", 1)
    assert ledger.leases.release("shard-0", "one", 1)
    assert not ledger.leases.renew("shard-0", "one", 1, LONG_S)
    assert other.leases.take("shard-0", "two", LONG_S) == 2
    assert ledger.leases.take("shard-0", "one", LONG_S) is None
    leases = ledger.leases.all()
    assert [(lease.name, lease.owner, lease.term) for lease in leases] == [("shard-0", "two", 2), ("shard-1", "two", 1)]
    assert all(LONG_S - 30 < lease.left_s <= LONG_S for lease in leases)


def test_lease_that_ran_out_is_taken_over_and_not_renewed(ledger: Ledger, other: Ledger) -> None:
    assert ledger.leases.take("run", "one", 0.2) == 1
    time.sleep(0.25)
    assert other.leases.take("run", "two", LONG_S) == 2
    assert not ledger.leases.renew("run", "one", 1, LONG_S)


def test_lease_that_ran_out_and_nobody_took_is_renewed(ledger: Ledger) -> None:
    assert ledger.leases.take("run", "one", 0.05) == 1
    time.sleep(0.1)
    assert ledger.leases.all()[0].left_s < 0
    assert ledger.leases.renew("run", "one", 1, LONG_S)
    assert ledger.leases.all()[0].left_s > 30


def test_one_of_many_owners_gets_the_lease(ledger: Ledger, other: Ledger) -> None:
    terms: list[int | None] = []

    def take(owner: str, where: Ledger) -> None:
        terms.append(where.leases.take("run", owner, LONG_S))

    threads = [threading.Thread(target=take, args=(f"o{i}", (ledger, other)[i % 2])) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(terms, key=str) == [1, *[None] * 7]


def test_fenced_ledger_writes_nothing_once_its_lease_ran_out(ledger: Ledger, other: Ledger) -> None:
    term = ledger.leases.take("run", "one", 0.3)
    assert term == 1
    ledger.leases.fence("run", "one", term)
    ledger.blobs.add("a" * 64, 1)
    time.sleep(0.35)
    with pytest.raises(LeaseLost, match=r"lease 'run' of one, term 1, is no longer held; nothing was written"):
        ledger.blobs.add("b" * 64, 1)
    assert ledger.blobs.sizes() == {"a" * 64: 1}
    assert other.leases.take("run", "two", LONG_S) == 2
    with pytest.raises(LedgerError):
        collecting(ledger, "a")
    assert other.rounds.all() == ()
    other.leases.fence("run", "two", 2)
    collecting(other, "a")


def test_fenced_ledger_writes_again_after_renewing_in_time(ledger: Ledger) -> None:
    ledger.leases.take("run", "one", 0.3)
    ledger.leases.fence("run", "one", 1)
    for _ in range(4):
        time.sleep(0.1)
        assert ledger.leases.renew("run", "one", 1, 0.3)
    ledger.blobs.add("a" * 64, 1)


def test_wish_stands_until_the_next_and_needs_no_lease(ledger: Ledger, other: Ledger) -> None:
    ledger.leases.take("run", "one", LONG_S)
    other.leases.fence("run", "two", 1)
    assert ledger.requests.find("control") is None
    other.requests.put("control", "pause")
    assert ledger.requests.find("control") == "pause"
    other.requests.put("control", "run")
    assert ledger.requests.find("control") == "run"


def test_presence_keeps_the_last_hello_and_heartbeat(ledger: Ledger, other: Ledger) -> None:
    ledger.presences.put([Presence(device="b", owner="one", hello=b"hello"), Presence(device="a", owner="one")])
    other.presences.put([Presence(device="b", owner="two", heartbeat=b"beat", away_reason="asleep \0")])
    ledger.presences.put([])
    first, second = ledger.presences.all()
    assert (first.device, first.owner, first.hello) == ("a", "one", b"")
    assert (second.owner, second.hello, second.heartbeat) == ("two", b"hello", b"beat")
    assert second.away_reason == "asleep \ufffd"
    assert 0 <= second.age_s < 30


def test_presence_of_long_ago_is_left_out(ledger: Ledger) -> None:
    ledger.presences.put([Presence(device="a", owner="one")])
    time.sleep(0.3)
    ledger.presences.put([Presence(device="b", owner="one")])
    assert [p.device for p in ledger.presences.all(0.25)] == ["b"]
    assert [p.device for p in ledger.presences.all(LONG_S)] == ["a", "b"]


def test_traffic_adds_up(ledger: Ledger) -> None:
    up = Traffic(device="a", direction="up", scheme="mqtt", payload_bytes=100, wire_bytes=110)
    down = Traffic(device="a", direction="down", scheme="https", payload_bytes=5, wire_bytes=6)
    ledger.traffic.add([up, down])
    ledger.traffic.add([up, up])
    ledger.traffic.add([])
    total = Traffic(device="a", direction="up", scheme="mqtt", payload_bytes=300, wire_bytes=330)
    assert ledger.traffic.all() == (down, total)
