"""Devices that are late, leave and return: the round ends when it should, and nothing counts twice."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from edge.contracts.errors import DeadlineExpired
from edge.contracts.messages import Bye, Offer, Put
from edge.contracts.plan import BlobRef, WorkOrder
from edge.contracts.tensor_file import encode_tensors
from tests.coordinator.messaging.inbox_bench import digest_of
from tests.federation.hostile_device import WAIT_S, HostileDevice
from tests.federation.in_process import InProcessFederation
from tests.federation.small_run import config_text

pytestmark = [pytest.mark.runtime, pytest.mark.slow]


class Straggler(HostileDevice):
    """Does its orders at once, but for its first: ``instead`` is called with it, and it is :attr:`kept`."""

    def __init__(self, stage: InProcessFederation, name: str, instead: Callable[[WorkOrder], None]) -> None:
        super().__init__(stage.broker, stage.name, name, self._do)
        self.kept: list[WorkOrder] = []
        self.has_kept = threading.Event()
        self._instead = instead

    def _do(self, order: WorkOrder) -> None:
        if self.kept:
            self.finish(order)
            return
        self._instead(order)
        self.kept.append(order)
        self.has_kept.set()

    def leave(self) -> None:
        """Say bye."""
        self.send("bye", Bye("out of the house"))

    def come_back(self) -> None:
        """Say hello, as a device that has lost what it had."""
        self._seen.clear()
        self.hello()


def patient(stage: InProcessFederation, name: str, straggler: list[Straggler]) -> HostileDevice:
    """A device that answers once the straggler has its order."""

    def do(order: WorkOrder) -> None:
        assert straggler[0].has_kept.wait(WAIT_S)
        device.finish(order)

    device = HostileDevice(stage.broker, stage.name, name, do)
    return device


def with_cohort(text: str, *lines: str) -> str:
    return text.replace("[cohort]\n", "\n".join(["[cohort]", *lines, ""]))


def test_round_of_more_devices_than_needed_ends_with_the_first_reports(tmp_path: Path, exports: Path) -> None:
    """Two of three count; the third is told to forget its work, and of its upload nothing is kept."""
    text = with_cohort(config_text(local=0, size=2, rounds=2, join_timeout_s=5), "over-selection = 1")
    with InProcessFederation(tmp_path, exports, text) as stage:
        slow: list[Straggler] = []

        def half_an_upload(order: WorkOrder) -> None:
            data = encode_tensors(slow[0].update(order))
            slow[0].send("offer", Offer(order.assignment_id, BlobRef(digest_of(data), len(data), "raw", len(data))))
            slow[0].send("put", Put(order.assignment_id, digest_of(data), 0, data[: len(data) // 2]))
            slow[0].wait_grant(order, 2)

        slow.append(Straggler(stage, "slow", half_an_upload))
        # The straggler is drawn into the round in any case: it and the others are all that is there.
        with patient(stage, "pi-1", slow), patient(stage, "pi-2", slow), slow[0]:
            stage.federation.devices.cohort.wait_for(3, 5.0)
            started = time.monotonic()
            stage.run()
            assert time.monotonic() - started < 60, "the deadline is 120 s away"
            (order,) = slow[0].kept
            ack = slow[0].wait_ack(order)
            assert (ack.accepted, ack.code) == (False, "stale-round")
            assert "round 0, attempt 0: not waited for any longer, 2 reports are in" in ack.reason
            # Late all the same: it is told again, and nothing changes.
            before = stage.ledger.rounds.all()
            slow[0].report(order, slow[0].upload(order, slow[0].update(order)))
            assert slow[0].wait_ack(order, 2).code == "stale-round"
            assert stage.ledger.rounds.all() == before
        assert stage.committed()[0] == (0, 0, ["pi-1", "pi-2"])
        assert stage.ledger.assignments.of_attempt(0, 0, "expired")[0].device == "slow"
        assert stage.lines.having("[ROUND 1/2] 2 reports are in: no report from slow")
        assert not any((tmp_path / "blobs" / "partial").iterdir())


def test_device_that_left_and_returns_before_the_deadline_gets_its_order_again(tmp_path: Path, exports: Path) -> None:
    with InProcessFederation(tmp_path, exports, config_text(local=0, size=2, rounds=1)) as stage:
        gone: list[Straggler] = []
        gone.append(Straggler(stage, "pi-2", lambda order: gone[0].leave()))

        def returns(point: str) -> None:
            if point == "collecting" and stage.ledger.updates.devices(0, 0) == ("pi-1",) and not passed:
                passed.append(point)
                assert stage.federation.devices.cohort.member("pi-2").away_reason == "out of the house"  # type: ignore[union-attr]
                gone[0].come_back()

        passed: list[str] = []
        stage.on_point = returns
        with patient(stage, "pi-1", gone), gone[0]:
            stage.run()
        assert stage.committed() == [(0, 0, ["pi-1", "pi-2"])]


def test_round_without_those_that_left_ends_early_where_that_is_allowed(tmp_path: Path, exports: Path) -> None:
    text = config_text(local=0, size=2, min_reports=1, rounds=1, join_timeout_s=5)
    with InProcessFederation(tmp_path, exports, with_cohort(text, "leave-after-s = 0.2")) as stage:
        gone: list[Straggler] = []
        gone.append(Straggler(stage, "pi-2", lambda order: gone[0].leave()))
        with patient(stage, "pi-1", gone), gone[0]:
            started = time.monotonic()
            stage.run()
        assert time.monotonic() - started < 60, "the deadline is 120 s away"
        assert stage.lines.having("[ROUND 1/1] whoever is awaited has been away for 0.2 s: no report from pi-2")
        assert stage.committed() == [(0, 0, ["pi-1"])]


def test_round_with_too_few_reports_waits_for_those_that_left(tmp_path: Path, exports: Path) -> None:
    text = config_text(local=0, size=2, rounds=1, deadline_s=2.0, join_timeout_s=1)
    with InProcessFederation(tmp_path, exports, with_cohort(text, "leave-after-s = 0.2")) as stage:
        gone: list[Straggler] = []
        gone.append(Straggler(stage, "pi-2", lambda order: gone[0].leave()))
        with patient(stage, "pi-1", gone), gone[0], pytest.raises(DeadlineExpired, match="1 of 2 devices said hello"):
            stage.run()
        assert stage.lines.having("[ROUND 1/1] deadline: no report from pi-2")
        assert stage.lines.having("[ROUND 1/1] 1 reports, 2 needed: the round is repeated")
