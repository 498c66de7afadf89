"""Pause, drain and stop, asked for through the run's ledger by somebody else while the run is under way."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from coordinator.ledger.ledger import Ledger
from coordinator.rounds.control import CONTROL, RunStopped
from edge.contracts.plan import WorkOrder
from tests.federation.hostile_device import HostileDevice
from tests.federation.in_process import InProcessFederation
from tests.federation.small_run import config_text
from tests.federation.test_buffered_rounds import buffered_text

pytestmark = [pytest.mark.runtime, pytest.mark.slow]
TEXTS = {
    "synchronous": config_text(local=0, size=1, rounds=3),
    "buffered": buffered_text(rounds=3, size=1),
}


@pytest.fixture(params=sorted(TEXTS))
def text(request: pytest.FixtureRequest) -> str:
    return TEXTS[request.param]


def wish(stage: InProcessFederation, value: str) -> None:
    """As another process leaves it: through a connection of its own."""
    with Ledger.open(stage.folder / "ledger.sqlite") as ledger:
        ledger.requests.put(CONTROL, value)


@contextmanager
def worker(stage: InProcessFederation, behave: Callable[[WorkOrder], bool] = lambda order: True) -> Iterator[list[int]]:
    """One device that finishes its orders when ``behave`` says so; the rounds it was ordered in."""
    ordered: list[int] = []

    def do(order: WorkOrder) -> None:
        ordered.append(order.round)
        if behave(order):
            device.finish(order)

    device = HostileDevice(stage.broker, stage.name, "pi-1", do)
    with device:
        yield ordered


def states(stage: InProcessFederation) -> list[str]:
    return [entry.state for entry in stage.ledger.rounds.all()]


def test_paused_run_begins_no_round_until_it_may_go_on(tmp_path: Path, exports: Path, text: str) -> None:
    with InProcessFederation(tmp_path, exports, text) as stage:

        def pause_in_the_first_round(order: WorkOrder) -> bool:
            if order.round == 0:
                wish(stage, "pause")
            return True

        with worker(stage, pause_in_the_first_round) as ordered:
            run = threading.Thread(target=stage.run)
            run.start()
            give_up_at = time.monotonic() + 30
            while not stage.lines.having("paused: no further round begins"):
                assert time.monotonic() < give_up_at
                time.sleep(0.05)
            assert states(stage) == ["committed"]
            time.sleep(1.5)
            assert (states(stage), ordered) == (["committed"], [0])
            wish(stage, "")
            run.join(30)
            assert not run.is_alive()
        assert states(stage) == ["committed"] * 3
        assert stage.lines.having("the run goes on")


def test_drained_run_ends_its_open_round_first_and_can_be_run_on(tmp_path: Path, exports: Path, text: str) -> None:
    with InProcessFederation(tmp_path, exports, text) as stage:

        def drain_in_the_second_round(order: WorkOrder) -> bool:
            if order.round == 1:
                wish(stage, "drain")
            return True

        with worker(stage, drain_in_the_second_round) as ordered:
            with pytest.raises(RunStopped, match=r"stopped as asked \(drain\): 2 of 3 rounds are committed") as caught:
                stage.run()
            assert caught.value.exit_code == 75
            assert (states(stage), ordered) == (["committed"] * 2, [0, 1])
            wish(stage, "")
            stage.run()
        assert states(stage) == ["committed"] * 3


def test_stopped_run_stops_in_its_round_tells_devices_and_takes_their_work_later(
    tmp_path: Path, exports: Path, text: str
) -> None:
    with InProcessFederation(tmp_path, exports, text) as stage:
        kept: list[WorkOrder] = []

        def keep_the_first(order: WorkOrder) -> None:
            if order.round == 0:
                kept.append(order)
                wish(stage, "stop")
            else:
                device.finish(order)

        device = HostileDevice(stage.broker, stage.name, "pi-1", keep_the_first)
        with device:
            started = time.monotonic()
            with pytest.raises(RunStopped, match=r"stopped as asked \(stop\): 0 of 3 rounds .* 1 devices were told"):
                stage.run()
            assert time.monotonic() - started < 60
            assert device.wait_error("the coordinator stops on request").code == "run-stopped"
            assert states(stage) == ["collecting"]
            assert stage.ledger.assignments.of_attempt(0, 0)[0].state in ("open", "accepted")
            wish(stage, "")
            # The work of before the stop counts.
            assert device.finish(kept[0]).accepted
            stage.run()
        assert states(stage) == ["committed"] * 3
