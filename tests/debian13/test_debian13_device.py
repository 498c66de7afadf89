"""A host as it comes with Python 3.13: one command makes a device of it, which trains a round with a coordinator."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.brokers.mosquitto import find_mosquitto
from tests.arm.federation_site import Site
from tests.coordinator.fleet.private_namespace import Unavailable
from tests.coordinator.fleet.ssh_server import SshServer
from tests.debian13.device_round import train_a_round
from tests.debian13.host import prepare, running_host

pytestmark = [
    pytest.mark.slow,
    pytest.mark.broker,
    pytest.mark.runtime,
    pytest.mark.skipif(find_mosquitto() is None, reason="mosquitto is not installed here (Debian: mosquitto)"),
]


@pytest.fixture
def host(tmp_path: Path) -> Iterator[SshServer]:
    try:
        with running_host(tmp_path / "host", prepare()) as server:
            yield server
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


def test_host_with_python_3_13_becomes_a_device_that_trains(host: SshServer, site: Site, tmp_path: Path) -> None:
    train_a_round(host, site, tmp_path, wait_s=120.0)
