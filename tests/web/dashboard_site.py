"""A run under way and its dashboard in one process: real coordinator, scripted devices, page on the loopback."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

from coordinator.cli.watch import served
from coordinator.rounds.live_state import written_live
from coordinator.rounds.remote_devices import RemoteDevices
from edge.contracts.messages import Accept, Bye, Heartbeat, Refuse
from edge.contracts.plan import WorkOrder
from tests.federation.hostile_device import HostileDevice
from tests.federation.in_process import InProcessFederation
from tests.federation.small_run import config_text

ROUNDS = 3
DEVICES = ("dies", "refuses", "works-1", "works-2")


class FollowedRun:
    """Four devices: one dies in the first round, one refuses, of two that work the second waits until it may finish.

    Attributes:
        link: of the page, with the token.
        may_finish: set: ``works-2`` finishes its orders.
        held: how many of its orders ``works-2`` has begun.
    """

    def __init__(self, folder: Path, stage: InProcessFederation, link: str) -> None:
        self.folder = folder
        self.stage = stage
        self.link = link
        self.may_finish = threading.Event()
        self.held = 0
        self._thread = threading.Thread(target=stage.run)

    def start(self) -> None:
        """Begin the rounds."""
        self._thread.start()

    def wait(self) -> None:
        """Until the last round is committed."""
        self.may_finish.set()
        self._thread.join(90)
        assert not self._thread.is_alive(), self.stage.lines.text

    def behave(self, device: HostileDevice, order: WorkOrder) -> None:
        """What a device of that name does with an order."""
        if device.device == "refuses":
            reason = "peak 90.0 MB, 80.0 MB allowed"
            device.send("refuse", Refuse(assignment_id=order.assignment_id, code="policy", reason=reason))
            return
        device.send("accept", Accept(order.assignment_id))
        training = {
            "state": "training",
            "assignment_id": order.assignment_id,
            "step": 3,
            "total_steps": 30,
            "loss": 0.5,
        }
        device.send("heartbeat", Heartbeat(**training))  # type: ignore[arg-type]
        if device.device == "dies":
            device.send("bye", Bye("connection lost"))
            return
        if device.device == "works-2":
            self.held += 1
            assert self.may_finish.wait(60)
        device.finish(order)
        device.send("heartbeat", Heartbeat(state="idle"))


@contextlib.contextmanager
def followed_run(folder: Path, exports: Path) -> Iterator[FollowedRun]:
    """The run and its page, not begun yet."""
    text = config_text(
        local=0, size=4, rounds=ROUNDS, min_reports=1, deadline_s=6.0, join_timeout_s=1.0, evaluation="every = 1"
    )
    with contextlib.ExitStack() as stack:
        stage = stack.enter_context(InProcessFederation(folder, exports, text))
        stage.ledger.led_by("test")
        remote = stage.federation.devices
        assert isinstance(remote, RemoteDevices)
        stack.enter_context(written_live(folder, remote.cohort, remote.clock))
        _, link = stack.enter_context(served(folder))
        run = FollowedRun(folder, stage, link)
        stack.callback(run.may_finish.set)
        for name in DEVICES:
            device = HostileDevice(stage.broker, stage.name, name, lambda order: None, budget_bytes=300_000_000)
            device._behave = lambda order, device=device: run.behave(device, order)  # type: ignore[misc]
            stack.enter_context(device)
        yield run
