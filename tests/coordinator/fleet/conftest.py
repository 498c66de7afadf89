"""Fixtures of tests that need a host to log in to. What this machine cannot do is skipped with its reason."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.coordinator.fleet.native_sshd import find_sshd, native_sshd
from tests.coordinator.fleet.private_namespace import Unavailable, require_namespaces
from tests.coordinator.fleet.ssh_server import SshServer

StartSshd = Callable[..., AbstractContextManager[SshServer]]


@pytest.fixture
def start_sshd(tmp_path: Path) -> StartSshd:
    """Starts servers of this machine, each with its own home: ``with start_sshd(home_mb=20) as server``."""
    try:
        find_sshd()
        require_namespaces()
    except Unavailable as reason:
        pytest.skip(str(reason))
    started = 0

    def start(**options: object) -> AbstractContextManager[SshServer]:
        nonlocal started
        started += 1
        return native_sshd(tmp_path / f"sshd-{started}", **options)  # type: ignore[arg-type]

    return start


@pytest.fixture
def native_host(start_sshd: StartSshd) -> Iterator[SshServer]:
    """A server of this machine with an empty home folder."""
    with start_sshd() as server:
        yield server
