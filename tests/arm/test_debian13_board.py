"""Debian 13 for aarch64 as it comes, its Python 3.13 on an emulated Pi 5: what Raspberry Pi OS trixie has."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.brokers.mosquitto import find_mosquitto
from tests.arm.boards import BOARDS
from tests.arm.emulated_host import emulated_host
from tests.arm.federation_site import Site
from tests.arm.userland import ROOT, Unavailable, prepare_host
from tests.coordinator.fleet.ssh_server import SshServer
from tests.debian13.device_round import train_a_round

pytestmark = [
    pytest.mark.slow,
    pytest.mark.broker,
    pytest.mark.runtime,
    pytest.mark.skipif(find_mosquitto() is None, reason="mosquitto is not installed here (Debian: mosquitto)"),
]

FOLDER = ROOT / ".debian13-arm"
PI_5 = BOARDS[2]


@pytest.fixture
def host(tmp_path: Path) -> Iterator[SshServer]:
    try:
        with emulated_host(tmp_path / "pi-5", prepare_host(FOLDER, "trixie", "3.13"), PI_5) as host:
            yield host
    except Unavailable as reason:
        pytest.skip(str(reason))


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    (tmp_path / "site").mkdir()
    site = Site(tmp_path / "site")
    try:
        yield site
    finally:
        site.close()


def test_emulated_trixie_becomes_a_device_that_trains(host: SshServer, site: Site, tmp_path: Path) -> None:
    profile = train_a_round(host, site, tmp_path, wait_s=300.0)
    assert (profile.machine, profile.board) == ("aarch64", PI_5.model)
