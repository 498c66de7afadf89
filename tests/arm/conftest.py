"""Fixtures of the emulated boards. What this machine cannot do is skipped with its reason."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.arm.boards import BOARDS, EmulatedDevice
from tests.arm.emulated_host import emulated_host
from tests.arm.session_library import cross_build
from tests.arm.userland import ROOT, Unavailable, Userland, prepare
from tests.coordinator.fleet.ssh_server import SshServer

VARIABLE = "APPORTION_TEST_ARM"
FOLDER = ROOT / ".arm"


def pytest_runtest_setup() -> None:
    """Emulation fetches a userland and takes its time: only where it was asked for."""
    if not os.environ.get(VARIABLE):
        pytest.skip(f"emulated boards have a target of their own, make test-arm, which sets {VARIABLE}")


@pytest.fixture(scope="session")
def userland() -> Userland:
    """The aarch64 userland, fetched once into a folder that git ignores."""
    try:
        return prepare(FOLDER)
    except Unavailable as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="session", params=BOARDS, ids=lambda board: board.name)
def device(userland: Userland, request: pytest.FixtureRequest) -> EmulatedDevice:
    """Each board in turn."""
    return EmulatedDevice(request.param, userland)


@pytest.fixture(scope="session")
def session_library(userland: Userland) -> Path:
    """The cross-built library, in its place on the device."""
    try:
        return cross_build(userland)
    except Unavailable as reason:
        pytest.skip(str(reason))


@pytest.fixture
def pi_4(userland: Userland, tmp_path: Path) -> Iterator[SshServer]:
    """A Pi 4 with an empty home folder, reached over SSH."""
    try:
        with emulated_host(tmp_path / "pi-4", userland, BOARDS[1]) as host:
            yield host
    except Unavailable as reason:
        pytest.skip(str(reason))
