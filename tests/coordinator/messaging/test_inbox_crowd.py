"""What the inbox gathers when thousands come at once: accepts in one transaction, arrivals as a number."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from coordinator.ledger.ledger import Ledger
from coordinator.loadtest.light_messages import hello_of
from coordinator.messaging.inbox import ARRIVALS_TOLD
from edge.contracts.messages import Accept, Offer, Put
from tests.coordinator.messaging.inbox_bench import FEDERATION, REPORT, UPDATE, MessageLoop, hello, ref_of


@pytest.fixture
def crowd(tmp_path: Path) -> Iterator[MessageLoop]:
    with Ledger.create(tmp_path / "ledger.sqlite", federation=FEDERATION, config="", seed=0) as ledger:
        yield MessageLoop(tmp_path, ledger)


def test_accepts_are_written_when_enough_have_come_or_nothing_else_does(crowd: MessageLoop) -> None:
    crowd.inbox.accepts_together = 2
    crowd.gets("pi-1", "accept", Accept(crowd.id()))
    assert crowd.state() == "open"
    crowd.gets("pi-2", "accept", Accept(crowd.id("pi-2")))
    assert (crowd.state(), crowd.state("pi-2")) == ("accepted", "accepted")
    crowd.inbox.settle()
    assert crowd.state() == "accepted"


def test_an_accept_that_waits_does_not_touch_what_was_answered_meanwhile(crowd: MessageLoop) -> None:
    crowd.inbox.accepts_together = 64
    crowd.gets("pi-1", "accept", Accept(crowd.id()))
    crowd.gets("pi-2", "accept", Accept(crowd.id("pi-2")))
    crowd.ledger.assignments.expire(crowd.id())
    crowd.inbox.settle()
    assert (crowd.state(), crowd.state("pi-2")) == ("expired", "accepted")


def test_the_first_arrivals_are_told_one_by_one_and_then_their_number(crowd: MessageLoop) -> None:
    for number in range(ARRIVALS_TOLD + 60):
        crowd.gets(f"load-{number}", "hello", hello_of(f"load-{number}", {"onnxruntime": "1"}, "idle", ""))
    told = [line for line in crowd.said if "is here" in line]
    assert len(told) == ARRIVALS_TOLD
    assert [line for line in crowd.said if "devices are here" in line] == ["100 devices are here"]
    assert len(crowd.cohort.present()) == ARRIVALS_TOLD + 60


def test_a_light_device_s_zeros_are_no_measurement(crowd: MessageLoop) -> None:
    ref = ref_of(UPDATE)
    crowd.gets("pi-1", "hello", hello("pi-1", num_examples=REPORT.num_examples))
    crowd.gets("pi-1", "offer", Offer(crowd.id(), ref))
    crowd.gets("pi-1", "put", Put(crowd.id(), ref.digest, 0, UPDATE))
    zeros = msgspec.structs.replace(
        REPORT, assignment_id=crowd.id(), device="pi-1", round=0, update=ref, step_ms_p50=0.0, trainer_peak_bytes=0
    )
    ((kind, ack),) = crowd.gets("pi-1", "report", zeros)
    assert (kind, ack.accepted) == ("ack", True)
    assert crowd.ledger.measurements.all() == ()
