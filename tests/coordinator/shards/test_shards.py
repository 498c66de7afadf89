"""Shards of devices: which device is of which, how many each process holds, who gives and who takes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.brokers.access import access_rules
from coordinator.brokers.broker_files import coordinator_files
from coordinator.cli.sharded_run import run_shards
from coordinator.config.canonical import canonical_toml
from coordinator.identity.authority import Authority
from coordinator.ledger.coordination import Lease
from coordinator.ledger.ledger import Ledger
from coordinator.reporting.progress import Progress
from coordinator.run_file.loading import load_config_text
from coordinator.shards.handler import HeldConnection
from coordinator.shards.leases import HeldShard, ShardLeases
from coordinator.shards.membership import fair_share, free_shards, member_lease, shard_lease, shard_of
from coordinator.shards.service import LedgerClock
from edge.contracts.errors import ConfigError, IdentityRefused, LeaseLost
from tests.federation.small_run import config_text
from tests.waiting import wait_until

FEDERATION = "sharded"
LEASE_S = 2.0


@pytest.fixture
def place(ledger_place: Path | str) -> Path | str:
    Ledger.create(ledger_place, federation=FEDERATION, config="", seed=0).close()
    return ledger_place


@contextlib.contextmanager
def process(place: Path | str, owner: str, shards: int) -> Iterator[ShardLeases]:
    """The leases of a coordinator that lets go of what it is to let go of."""

    def changed() -> None:
        for shard in leases.surplus():
            leases.give_up(shard)

    with Ledger.open(place, federation=FEDERATION) as ledger:
        leases = ShardLeases(ledger, owner, shards=shards, lease_s=LEASE_S, changed=changed)
        with leases:
            yield leases


def counts(*processes: ShardLeases) -> list[int]:
    return [len(process.held()) for process in processes]


@pytest.mark.parametrize(
    ("device", "shards", "number"),
    # By sha256sum: the first sixteen digits of each id's digest, modulo the number of shards.
    [("device-00", 2, 1), ("device-01", 2, 0), ("device-02", 4, 3), ("pi-07", 16, 11), ("a", 64, 10), ("a", 1, 0)],
)
def test_shard_of_a_device_is_the_same_everywhere(device: str, shards: int, number: int) -> None:
    assert shard_of(device, shards) == number


def test_shards_are_of_about_the_same_size() -> None:
    sizes = [0] * 8
    for number in range(8000):
        sizes[shard_of(f"device-{number}", 8)] += 1
    assert min(sizes) > 900
    assert max(sizes) < 1100


def leases_of(*held: tuple[str, int]) -> list[Lease]:
    """Live processes, and the shards that each holds: the first has the lowest numbers."""
    rows, number = [], 0
    for owner, count in held:
        rows.append(Lease(name=member_lease(owner), owner=owner, term=1, left_s=1.0))
        for _ in range(count):
            rows.append(Lease(name=shard_lease(number), owner=owner, term=1, left_s=1.0))
            number += 1
    return rows


@pytest.mark.parametrize(
    ("held", "shares"),
    [
        ([("a", 4), ("b", 0)], [2, 2]),
        ([("a", 2), ("b", 2), ("c", 0)], [2, 1, 1]),
        ([("c", 2), ("b", 1), ("a", 0)], [2, 1, 1]),  # one that holds two keeps them, whatever its name
        ([("a", 1), ("b", 1), ("c", 1), ("d", 1), ("e", 0)], [1, 1, 1, 1, 0]),
    ],
)
def test_fair_shares_add_up_and_move_nothing_without_need(held: list[tuple[str, int]], shares: list[int]) -> None:
    leases = leases_of(*held)
    assert [fair_share(owner, leases, 4) for owner, _ in held] == shares


def test_process_that_is_gone_has_no_share() -> None:
    gone = Lease(name=member_lease("gone"), owner="gone", term=1, left_s=-0.1)
    run_out = Lease(name=shard_lease(1), owner="gone", term=1, left_s=-0.1)
    leases = [*leases_of(("a", 1)), gone, run_out]
    assert fair_share("a", leases, 4) == 4
    assert free_shards(leases, 4) == [1, 2, 3]


@pytest.mark.slow
def test_shards_are_divided_anew_when_processes_come_and_go(place: Path | str) -> None:
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(process(place, "first", 4))
        wait_until(lambda: counts(first) == [4], within_s=2.0)
        second = stack.enter_context(process(place, "second", 4))
        wait_until(lambda: counts(first, second) == [2, 2], within_s=3.0)
        assert first.held().keys() | second.held().keys() == {0, 1, 2, 3}
        with process(place, "third", 4) as third:
            wait_until(lambda: sorted(counts(first, second, third)) == [1, 1, 2], within_s=4.0)
        # It let go: nobody waits for its leases.
        took_s = wait_until(lambda: counts(first, second) == [2, 2], within_s=4.0)
        assert took_s < LEASE_S


@pytest.mark.slow
def test_shards_of_a_silent_process_are_taken_when_its_leases_run_out(place: Path | str) -> None:
    with Ledger.open(place, federation=FEDERATION) as ledger:
        assert ledger.leases.take(member_lease("dead"), "dead", LEASE_S) == 1
        assert ledger.leases.take(shard_lease(0), "dead", LEASE_S) == 1
        began = time.monotonic()
        with process(place, "alive", 2) as alive:
            wait_until(lambda: counts(alive) == [2], within_s=LEASE_S + 1.0)
            assert time.monotonic() - began >= LEASE_S - 0.1
            assert alive.held()[0].term == 2


@pytest.mark.slow
def test_process_that_cannot_serve_leaves_its_share_to_others(place: Path | str) -> None:
    with process(place, "first", 2) as first:
        wait_until(lambda: counts(first) == [2], within_s=2.0)
        for shard in first.held().values():
            first.give_up(shard, rest_s=30.0)
        with process(place, "second", 2) as second:
            wait_until(lambda: counts(first, second) == [0, 2], within_s=LEASE_S + 2.0)


def test_shard_taken_by_another_is_lost_and_nobody_is_answered(place: Path | str) -> None:
    sent: list[str] = []

    class Connection:
        def publish(self, topic: str, payload: bytes, *, qos: int = 1) -> None:
            sent.append(topic)

    with process(place, "first", 1) as first, Ledger.open(place, federation=FEDERATION) as ledger:
        wait_until(lambda: counts(first) == [1], within_s=2.0)
        shard, lost = first.held()[0], []
        shard.on_lost = lambda: lost.append(time.monotonic())
        gate = HeldConnection(Connection(), shard.is_held)  # type: ignore[arg-type]
        gate.publish("before", b"")
        # As it is after a long sleep: another one has it.
        assert ledger.leases.release(shard_lease(0), "first", shard.term)
        assert ledger.leases.take(shard_lease(0), "second", 60.0) == 2
        wait_until(lambda: bool(lost), within_s=LEASE_S)
        gate.publish("after", b"")
        assert sent == ["before"]
        assert counts(first) == [0]
        with pytest.raises(LeaseLost, match="lease 'shard-0' of first, term 1, is no longer held"):
            shard.check()


def test_lease_that_was_not_renewed_is_over_by_our_own_clock() -> None:
    assert not HeldShard(0, "one", 1, held_until=0.0).is_held()


def test_clock_of_the_ledger_stands_still_while_nobody_leads(
    place: Path | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    with Ledger.open(place, federation=FEDERATION) as ledger:
        clock = LedgerClock(ledger)
        assert clock.remaining_s() == 0.0  # no round is open
        ledger.rounds.plan(0, 0, deadline_s=60.0, assignments=[])
        monkeypatch.setattr(time, "monotonic", lambda: now)
        assert clock.remaining_s() == 60.0
        now = 102.0
        assert clock.remaining_s() == 58.0
        now = 1000.0
        assert clock.remaining_s() == 55.0  # a leader writes every 5 s
        ledger.rounds.set_deadline(0, 0, 20.0)
        assert clock.remaining_s() == 20.0
        ledger.rounds.move(0, 0, "abandoned")
        ledger.rounds.plan(0, 1, deadline_s=20.0, assignments=[])
        now = 1004.0
        assert clock.remaining_s() == 20.0  # of another attempt, though it reads the same


def test_each_shard_has_a_certificate_that_allows_what_the_coordinators_does(tmp_path: Path) -> None:
    with Authority.create(tmp_path / "identity") as authority:
        authority.issue_coordinator("fed")
        issued = [authority.issue_coordinator("fed", shard=number) for number in range(2)]
        rules = access_rules(authority.records.certificates(), authority.now()).decode()
    assert [one.certificate.name for one in issued] == ["@fed@shard-0", "@fed@shard-1"]
    of_coordinator = rules.partition("user @fed\n")[2].partition("\nuser ")[0]
    assert "topic read apportion/v1/fed/up/#" in of_coordinator
    assert f"user @fed@shard-1\n{of_coordinator}" in rules
    files = coordinator_files(tmp_path / "identity", "fed", issue=False, shard=1)
    assert files.certificate.name == "fed@shard-1.pem"
    with pytest.raises(IdentityRefused, match="coordinator of 'fed' for shard 2") as error:
        coordinator_files(tmp_path / "identity", "fed", issue=False, shard=2)
    assert "issue-coordinator fed --shards N" in error.value.hint


def test_agents_that_would_end_with_one_process_are_refused(tmp_path: Path) -> None:
    config = load_config_text(f"{config_text(local=0, broker=ELSEWHERE)}\n{STORE}")
    with pytest.raises(ConfigError, match="--local-devices 3: agents that this process starts"):
        run_shards(config, tmp_path, 3, lambda point: None, Progress(stream=None), is_joined=False)


STORE = '[store]\nshards = 2\nledger = "postgresql://x/y"\ndir = "/shared"\n'
ELSEWHERE = 'url = "mqtt://broker.example"'


def test_run_file_with_shards_reads_as_it_is_written() -> None:
    config = load_config_text(f"{config_text(local=0, broker=ELSEWHERE)}\n{STORE}")
    assert config.store.shards == 2
    assert load_config_text(canonical_toml(config)) == config
    assert "shards" not in canonical_toml(load_config_text(config_text()))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (config_text(local=0) + STORE, r"\$\.broker\.url: 'embedded' ends with the process"),
        (config_text(local=2, broker=ELSEWHERE) + STORE, r"\$\.cohort\.local: 2 agents would end with"),
        (config_text(local=0, broker=ELSEWHERE) + "[store]\nshards = 2", r"\$\.store\.ledger: is missing"),
        (config_text(local=0, broker=ELSEWHERE) + "[store]\nshards = 2", r"\$\.store\.dir: with \$\.store\.shards = 2"),
        (config_text(local=0, broker=ELSEWHERE) + STORE + 'blobs = "s3://b/p"', r"\$\.store\.blobs: with"),
        (config_text(local=0, broker=ELSEWHERE) + STORE + "quota-mb = 5", r"\$\.store\.quota-mb: 5 is counted by one"),
        (config_text(local=0, broker=ELSEWHERE) + STORE.replace("2", "65"), r"\$\.store\.shards: 65 is outside"),
        (
            config_text(local=0, broker=ELSEWHERE) + STORE + '[aggregation]\nmode = "buffered"',
            r"\$\.aggregation\.mode: 'buffered' hands out work",
        ),
        (
            config_text(local=0, broker=ELSEWHERE) + STORE + "[privacy]\nsecure-aggregation = true",
            r"\$\.privacy\.secure-aggregation: keys and shares",
        ),
    ],
)
def test_what_shards_do_not_carry_is_refused(text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        load_config_text(text)
