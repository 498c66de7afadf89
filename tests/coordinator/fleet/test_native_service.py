"""The agent as a service of a real systemd, over a real sshd. The agent is a short script, the service is ours."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.fleet import commands
from coordinator.fleet.facts import probe_host
from coordinator.fleet.host import Completed
from coordinator.fleet.installation import Installation
from coordinator.fleet.service import install_service, remove_all, service_kind, start_service
from coordinator.fleet.ssh_host import SshHost, connect_ssh
from tests.coordinator.fleet.conftest import StartSshd
from tests.coordinator.fleet.private_namespace import Unavailable
from tests.coordinator.fleet.ssh_server import SshServer
from tests.coordinator.fleet.user_manager import RUNTIME_FOLDER

pytestmark = [pytest.mark.filterwarnings("ignore::ResourceWarning"), pytest.mark.slow]

PI = Installation(device="pi-07", federation="demo", broker_url="mqtts://broker.local", data="images")
UNIT = "apportion-pi-07.service"
SYSTEMCTL = f"XDG_RUNTIME_DIR={RUNTIME_FOLDER} systemctl --user"
AGENT = """#!/bin/sh
echo $$ > "$HOME/agent.pid"
trap 'echo in order > "$HOME/ended"; exit 0' TERM
while :; do sleep 0.1; done
"""


@pytest.fixture
def server(start_sshd: StartSshd) -> Iterator[SshServer]:
    """A host whose user's services are run by systemd."""
    try:
        with start_sshd(systemd=True) as server:
            yield server
    except Unavailable as reason:
        pytest.skip(str(reason))


async def lines(host: SshHost, text: str) -> list[str]:
    done: Completed = await host.run(text)
    assert done.status == 0, done.stderr
    return [line for line in done.stdout.splitlines() if not line.startswith("note ")]


def wait_for(path: Path, other_than: str = "") -> str:
    """What the file says, when it is there and says something else."""
    give_up_at = time.monotonic() + 30
    while time.monotonic() < give_up_at:
        if path.exists() and (text := path.read_text().strip()) and text != other_than:
            return text
        time.sleep(0.05)
    raise AssertionError(f"{path.name} does not come")


async def check(server: SshServer, host: SshHost) -> None:
    before = server.listing()
    assert service_kind(await probe_host(host)) == "systemd"
    await lines(host, commands.make_folder(PI))
    python = server.home / ".apportion/pi-07/environment/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(AGENT)
    python.chmod(0o755)

    assert "changed" in await lines(host, install_service(PI, "systemd"))
    assert await lines(host, start_service(PI, "systemd", restart=True)) == ["changed", "alive"]
    assert await lines(host, install_service(PI, "systemd")) == []
    assert await lines(host, start_service(PI, "systemd", restart=False)) == ["alive"]
    first = wait_for(server.home / "agent.pid")
    assert await lines(host, f"{SYSTEMCTL} is-enabled {UNIT}") == ["enabled"]

    # Started again 10 s later, which a manager that waits for it need not be waited for.
    await lines(
        host, f"kill -9 {first}; until [ $({SYSTEMCTL} show -P SubState {UNIT}) != running ]; do sleep 0.1; done"
    )
    assert await lines(host, f"{SYSTEMCTL} show -P SubState {UNIT}") == ["auto-restart"]
    assert await lines(host, start_service(PI, "systemd", restart=True)) == ["changed", "alive"]
    wait_for(server.home / "agent.pid", other_than=first)

    assert await lines(host, remove_all(PI)) == ["removed service", "removed folder"]
    assert wait_for(server.home / "ended") == "in order"
    await lines(host, "rm agent.pid ended")
    assert "0 unit files listed." in (await host.run(f"{SYSTEMCTL} list-unit-files 'apportion*'")).stdout
    assert server.listing() == before


def test_systemd_starts_the_agent_again_and_lets_it_go_without_a_trace(server: SshServer) -> None:
    async def session() -> None:
        host = await connect_ssh(
            "pi@127.0.0.1",
            port=server.port,
            key=server.keys.client,
            known_hosts=server.keys.host.with_name("known"),
            accept_fingerprint=server.keys.fingerprint,
        )
        try:
            await check(server, host)
        finally:
            await host.close()

    asyncio.run(session())
