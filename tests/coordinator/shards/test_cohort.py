"""Who is there, written by the holder of a shard and read by the coordinator that leads."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.ledger.ledger import Ledger
from coordinator.shards.cohort import ReadCohort, WrittenCohort
from edge.contracts.messages import Heartbeat, Hello
from profiles.device import DeviceProfile


@pytest.fixture
def ledger(ledger_place: Path | str) -> Iterator[Ledger]:
    with Ledger.create(ledger_place, federation="shared", config="", seed=0) as opened:
        yield opened


def hello(device: str) -> Hello:
    profile = DeviceProfile(device=device, trainer_idle_bytes={"onnxruntime": 1})
    return Hello(device=device, agent_version="1", profile=profile, runtimes={"onnxruntime": "1"}, num_examples=10)


def wait_until_here(cohort: ReadCohort, *devices: str) -> None:
    give_up_at = time.monotonic() + 5.0
    while [h.device for h in cohort.present(usable_only=False)] != list(devices):
        assert time.monotonic() < give_up_at
        time.sleep(0.02)


def test_leader_sees_who_comes_and_goes_at_other_processes(ledger: Ledger) -> None:
    holder = WrittenCohort()
    holder.greet(hello("a"))
    ledger.presences.put(holder.unwritten("one"))
    with ReadCohort(ledger) as leader:
        assert leader.present(usable_only=False) == [hello("a")]
        holder.greet(hello("b"))
        assert holder.has_news()
        ledger.presences.put(holder.unwritten("one"))
        wait_until_here(leader, "a", "b")
        holder.leave("a", "switched off")
        ledger.presences.put(holder.unwritten("one"))
        wait_until_here(leader, "b")
        member = leader.member("a")
        assert member is not None
        assert member.away_reason == "switched off"


def test_heartbeat_is_no_news_and_leaves_the_hello_as_it_is(ledger: Ledger) -> None:
    holder, beat = WrittenCohort(), Heartbeat(state="training", step=3, total_steps=9)
    holder.greet(hello("a"))
    ledger.presences.put(holder.unwritten("one"))
    assert holder.beat("a", beat)
    assert not holder.has_news()
    (presence,) = holder.unwritten("one")
    assert presence.hello == b""
    ledger.presences.put([presence])
    with ReadCohort(ledger) as leader:
        member = leader.member("a")
        assert member is not None
        assert (member.hello, member.heartbeat) == (hello("a"), beat)


def test_presence_that_was_not_written_is_given_again_whole(ledger: Ledger) -> None:
    holder = WrittenCohort()
    holder.greet(hello("a"))
    lost = holder.unwritten("one")
    assert holder.unwritten("one") == []
    holder.not_written(lost)
    assert holder.unwritten("one") == lost


def test_next_holder_knows_whom_the_last_one_heard(ledger: Ledger) -> None:
    before = WrittenCohort()
    before.greet(hello("a"))
    ledger.presences.put(before.unwritten("one"))
    after = WrittenCohort()
    after.know(ledger.presences.all())
    assert after.present(usable_only=False) == [hello("a")]
    assert after.unwritten("two") == []
    assert after.beat("a", Heartbeat(state="idle"))
    ledger.presences.put(after.unwritten("two"))
    (presence,) = ledger.presences.all()
    assert presence.owner == "two"
    assert presence.hello
