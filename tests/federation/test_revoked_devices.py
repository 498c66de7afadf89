"""A device is revoked while a round goes on: nobody waits for it, it is heard no more, what had counted stays."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from coordinator.identity.authority import Authority
from edge.contracts.plan import WorkOrder
from edge.identity.device_identity import make_request
from tests.federation.hostile_device import HostileDevice
from tests.federation.in_process import InProcessFederation
from tests.federation.small_run import config_text

pytestmark = [pytest.mark.runtime, pytest.mark.slow]

NAMES = ("pi-1", "pi-2", "pi-3")
DEADLINE_S = 120.0


@pytest.fixture
def identity(tmp_path: Path) -> Path:
    with Authority.create(tmp_path / "identity") as authority:
        for name in NAMES:
            authority.sign_device(make_request(tmp_path / name, name).request.read_bytes(), name)
    return tmp_path / "identity"


def run_file(identity: Path, rounds: int) -> str:
    broker = f'url = "mosquitto"\nidentity = "{identity}"'
    return config_text(broker=broker, local=0, min_reports=2, rounds=rounds, deadline_s=DEADLINE_S, join_timeout_s=5.0)


def revoke(identity: Path, device: str) -> None:
    """As another command would, while the run goes on."""
    with Authority(identity) as authority:
        authority.revoke(device)


def test_revoked_device_is_not_waited_for_and_its_report_counts_nothing(
    tmp_path: Path, exports: Path, identity: Path
) -> None:
    devices: dict[str, HostileDevice] = {}
    orders: list[WorkOrder] = []

    def honest(order: WorkOrder) -> None:
        devices[order.device].finish(order)

    def shut_out(order: WorkOrder) -> None:
        orders.append(order)
        revoke(identity, "pi-3")
        # Its broker knows nothing of it yet: it says hello, beats and reports like any other.
        devices["pi-3"].hello()

    with InProcessFederation(tmp_path, exports, run_file(identity, 2)) as stage:
        for name in NAMES:
            behave = shut_out if name == "pi-3" else honest
            devices[name] = HostileDevice(stage.broker, stage.name, name, behave)
        with devices["pi-1"], devices["pi-2"], devices["pi-3"]:
            began = time.monotonic()
            stage.run()
            assert time.monotonic() - began < DEADLINE_S / 2
        assert stage.committed() == [(0, 0, ["pi-1", "pi-2"]), (1, 0, ["pi-1", "pi-2"])]
        (order,) = orders
        entry = stage.ledger.assignments.find(order.assignment_id)
        assert entry is not None
        assert (entry.state, entry.code) == ("expired", "revoked")
        assert stage.lines.having("pi-3 was revoked: round 1 does not wait for it")
        assert any("was revoked" in error.message for error in devices["pi-3"].errors)


def test_what_was_reported_before_the_revocation_stays_counted(tmp_path: Path, exports: Path, identity: Path) -> None:
    devices: dict[str, HostileDevice] = {}

    def behave(order: WorkOrder) -> None:
        if order.device == "pi-3" and order.round:
            return  # ordered at the same moment as it was revoked
        if order.device != "pi-3" and order.round == 0:
            while not devices["pi-3"].acks:
                time.sleep(0.01)
        devices[order.device].finish(order)
        if order.device == "pi-3":
            revoke(identity, "pi-3")

    with InProcessFederation(tmp_path, exports, run_file(identity, 2)) as stage:
        for name in NAMES:
            devices[name] = HostileDevice(stage.broker, stage.name, name, behave)
        with devices["pi-1"], devices["pi-2"], devices["pi-3"]:
            stage.run()
        assert stage.committed() == [(0, 0, ["pi-1", "pi-2", "pi-3"]), (1, 0, ["pi-1", "pi-2"])]
