"""Sites behind relays: the model of the direct run, an eighth of its bytes, and what a relay does not pass on."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from coordinator.submodels.values import State
from edge.contracts.errors import DeadlineExpired
from tests.federation.in_process import InProcessFederation
from tests.federation.relayed_site import RelayedSite
from tests.federation.small_run import config_text

pytestmark = [pytest.mark.runtime, pytest.mark.slow]


def text_of(*, size: int, devices: int, rounds: int = 2, batch: int = 512, extra: str = "") -> str:
    """A run of FedAvg in which every epoch is one batch, so that the order of examples moves nothing but rounding."""
    text = config_text(rounds=rounds, local=0, size=size, min_reports=size)
    for old, new in (
        ('name = "fedhm"\nlevels = [4]', 'name = "fedavg"'),
        ("frobenius-lambda = 0.0001", ""),
        ("epochs = 1\nbatch = 16", f"epochs = 3\nbatch = {batch}"),
        (f"devices = {size}", f"devices = {devices}"),
    ):
        assert old in text
        text = text.replace(old, new)
    return f"{text}\n{extra}"


@contextlib.contextmanager
def federation(folder: Path, exports: Path, text: str, devices: int) -> Iterator[InProcessFederation]:
    """A coordinator, and the data of ``devices`` devices written below ``folder``."""
    folder.mkdir()
    running = InProcessFederation(folder, exports, text)
    from coordinator.local_devices.data_folders import device_shares

    running.shares = device_shares(running.config, running.dataset, devices)
    with running:
        for index in range(devices):
            running.write_data(f"d{index}", index)
        yield running


@contextlib.contextmanager
def sites(running: InProcessFederation, *groups: range, **settings: object) -> Iterator[list[RelayedSite]]:
    """One relay for every group of devices, with its agents."""
    made = []
    try:
        for number, group in enumerate(groups):
            site = RelayedSite(running.folder / f"site-{number}", running.broker, running.name, f"site-{number}")
            made.append(site)
            site.start_relay(**{"min_devices": len(group), **settings})
            for index in group:
                site.start_agent(f"d{index}", running.folder / "devices" / f"d{index}" / "data")
        yield made
    finally:
        for site in made:
            site.stop()


def difference(state: State, other: State) -> float:
    """Largest difference of a tensor, relative to its largest value."""
    return max(
        float(np.max(np.abs(value - other.tensors[name])) / np.max(np.abs(value)))
        for name, value in state.tensors.items()
    )


def test_two_relays_of_three_devices_give_the_model_of_six_devices(exports: Path, tmp_path: Path) -> None:
    rounds = 2
    with federation(tmp_path / "direct", exports, text_of(size=6, devices=6, rounds=rounds), 6) as running:
        for index in range(6):
            running.agent(f"d{index}")
        direct = running.run()
        direct_bytes = wire_bytes(running)
        before = running.federation.method.init()
    with federation(tmp_path / "relayed", exports, text_of(size=2, devices=6, rounds=rounds), 6) as running:
        with sites(running, range(3), range(3, 6)):
            relayed = running.run()
        assert running.committed() == [(r, 0, ["site-0", "site-1"]) for r in range(rounds)]
        relayed_bytes = wire_bytes(running)
        reports = [update.report for r in range(rounds) for update in running.ledger.updates.of_attempt(r, 0)]
    assert [report.site_devices for report in reports] == [3, 3] * rounds
    found = difference(direct, relayed)
    print(f"largest relative difference after {rounds} rounds: {found:.2e}")
    assert found <= rounds * 1e-6
    assert difference(direct, before) > 1e-3  # it has learnt
    # Two devices' traffic instead of six, but for a few control messages more or less.
    for ours, theirs in zip(relayed_bytes, direct_bytes, strict=True):
        assert ours / theirs == pytest.approx(1 / 3, rel=0.15)


def wire_bytes(running: InProcessFederation) -> tuple[int, int]:
    """(up, down) at the coordinator, of all devices."""
    rows = running.ledger.traffic.all()
    up, down = (sum(row.wire_bytes for row in rows if row.direction == way) for way in ("up", "down"))
    return up, down


def test_run_that_no_mean_stands_for_ends_with_the_relays_reason(exports: Path, tmp_path: Path) -> None:
    text = config_text(rounds=1, local=0, size=1)
    with federation(tmp_path / "run", exports, text, 1) as running:
        with sites(running, range(1)), pytest.raises(DeadlineExpired) as raised:
            running.run()
    assert "not-summable" in str(raised.value) or "join directly" in str(raised.value)
