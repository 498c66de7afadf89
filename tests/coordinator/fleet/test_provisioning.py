"""A host becomes a device step by step, over real SSH where it says so: again, cut off, refused, taken back."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509 import load_pem_x509_certificate

from coordinator.fleet import commands
from coordinator.fleet.device_wheel import write_device_wheel
from coordinator.fleet.facts import HostFacts, probe_host
from coordinator.fleet.host import CommandFailed, HostLost, HostUnfit
from coordinator.fleet.installation import Installation
from coordinator.fleet.provisioning import Provisioned, agent_log, measured_profile, provision, remove
from coordinator.fleet.ssh_host import NEW, SshHost, connect_ssh
from coordinator.fleet.wheelhouse import Wheelhouse, WheelsUnavailable, build_wheelhouse
from coordinator.identity.authority import Authority
from edge.contracts.errors import IdentityRefused
from edge.contracts.release import RELEASE
from edge.identity.device_identity import make_request
from tests.coordinator.fleet.conftest import StartSshd
from tests.coordinator.fleet.cutting_relay import CuttingRelay
from tests.coordinator.fleet.local_host import LocalHost
from tests.coordinator.fleet.ssh_server import SshServer, listing

PI = Installation(
    device="pi-07",
    federation="demo",
    broker_url="mqtts://127.0.0.1:1",
    data="~/my images",
    budget_mb=160.0,
    extra_flags=("--connect-timeout-s", "3"),
)
IMPATIENT = replace(PI, extra_flags=("--connect-timeout-s", "0.5"))
"""Its agent has ended for want of a broker when its start is looked at, which is no failure."""
PYTHON = Path(sys.executable).resolve()
Wheels = Callable[[HostFacts], Wheelhouse]


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Wheels:
    """The wheels of a device for this machine, fetched once; skips where no index can be reached."""
    folder = tmp_path_factory.mktemp("wheels")
    host = LocalHost(folder / "home", python=PYTHON)
    try:
        made = build_wheelhouse(folder / "cache", asyncio.run(probe_host(host)), "onnxruntime")
    except WheelsUnavailable as reason:
        pytest.skip(f"no wheels can be fetched: {reason}")
    return lambda facts: made


@pytest.fixture(scope="session")
def few_wheels(wheels: Wheels, tmp_path_factory: pytest.TempPathFactory) -> Wheels:
    """Those that the supervisor needs: without a runtime they are installed in a second."""
    folder = tmp_path_factory.mktemp("few")
    host = LocalHost(folder / "home", python=PYTHON)
    whole = wheels(asyncio.run(probe_host(host)))
    left = {
        n: d
        for n, d in whole.digests.items()
        if not n.lower().startswith(("onnxruntime", "numpy", "protobuf", "pillow"))
    }
    return lambda facts: replace(whole, digests=left, release="f" * 64)


@pytest.fixture
def identity(tmp_path: Path) -> Path:
    """An authority's folder."""
    Authority.create(tmp_path / "identity").close()
    return tmp_path / "identity"


@pytest.fixture
def local(tmp_path: Path) -> Iterator[LocalHost]:
    """A home folder of this machine with something of its owner in it; no agent survives the test."""
    host = LocalHost(tmp_path / "home", python=PYTHON)
    (host.home / "my images").mkdir()
    yield host
    host.lost_after = 10**9
    asyncio.run(remove(host, PI))


def unused(facts: HostFacts) -> Wheelhouse:
    """For hosts that must be refused before anything is made for them."""
    raise AssertionError("the wheels were asked for")


async def connect(server: SshServer, port: int) -> SshHost:
    return await connect_ssh(
        f"pi@{server.host}",
        port=port,
        key=server.keys.client,
        known_hosts=server.keys.host.with_name("known"),
        accept_fingerprint=NEW,
    )


def over_ssh(server: SshServer, identity: Path, wheels: Wheels, *, port: int = 0, told: list[str]) -> Provisioned:
    """One run of the command, with a connection of its own."""

    async def session() -> Provisioned:
        host = await connect(server, port or server.port)
        try:
            return await provision(host, PI, identity=identity, wheels=wheels, tell=told.append)
        finally:
            await host.close()

    return asyncio.run(session())


@pytest.mark.slow
def test_a_host_that_drops_in_the_copy_is_resumed_and_runs(
    native_host: SshServer, identity: Path, wheels: Wheels
) -> None:
    told: list[str] = []
    with CuttingRelay(native_host.port) as relay:
        relay.cut_after(20 << 20)
        with pytest.raises(
            HostLost, match=r"at the step 'wheels', finished before: probe, fit, wheelhouse, folder"
        ) as e:
            over_ssh(native_host, identity, wheels, port=relay.port, told=told)
    assert "the same command goes on" in e.value.hint
    kept = {name: seen for name, seen in native_host.listing().items() if name.endswith(".whl")}
    assert len(kept) > 8

    first = over_ssh(native_host, identity, wheels, told=told)
    assert first.changed == ("wheels", "environment", "key", "certificate", "trust", "service", "start")
    kept_bytes = sum(int(seen.split()[-1]) for seen in kept.values())
    assert first.sent_bytes == wheels(first.facts).packed_bytes - kept_bytes
    assert first.installed_bytes > 100 << 20
    seen = native_host.listing()
    assert seen[".apportion/pi-07/identity/device.key"].startswith("100600")
    assert not [name for name in seen if "/torch/" in name or "/coordinator/" in name or name.endswith(".part")]

    second = over_ssh(native_host, identity, wheels, told=told)
    assert (second.changed, second.sent_bytes, second.serial) == ((), 0, first.serial)
    print({name: round(seconds, 2) for name, seconds in first.seconds.items()}, sum(second.seconds.values()))

    async def rest() -> None:
        host = await connect(native_host, native_host.port)
        assert (await measured_profile(host, PI)).device == "pi-07"
        running = native_host.run("cat .apportion/pi-07/agent.pid").strip()
        assert await remove(host, PI) == ("service", "folder")
        assert await remove(host, PI) == ()
        assert native_host.run(f"kill -0 {running} 2>&1 || echo gone").strip().endswith("gone")
        await host.close()

    asyncio.run(rest())
    assert native_host.listing() == {}


def next_release(wheels: Wheels, folder: Path) -> Wheels:
    """Of a release of this project whose other packages are the same."""

    def newer(facts: HostFacts) -> Wheelhouse:
        standing = wheels(facts)
        folder.mkdir(exist_ok=True)
        own = write_device_wheel(folder, {"lib/apportion/new": b"new"})
        for name in standing.digests:
            if name != own.name and not (folder / name).exists():
                (folder / name).symlink_to(standing.folder / name)
        digests = {**standing.digests, own.name: hashlib.sha256(own.read_bytes()).hexdigest()}
        return replace(standing, folder=folder, digests=digests, release="e" * 64)

    return newer


@pytest.mark.slow
def test_a_device_is_made_through_lost_connections_then_changed_and_upgraded(
    local: LocalHost, identity: Path, few_wheels: Wheels, tmp_path: Path
) -> None:
    """Every run gets a few calls further; what is finished is not done again."""
    steps: list[str] = []

    async def run() -> Provisioned:
        return await provision(local, IMPATIENT, identity=identity, wheels=few_wheels, tell=steps.append)

    runs, done = 0, None
    while done is None:
        runs, local.calls = runs + 1, 0
        # 2: probe and folder; the copies and the environment are one longer run
        local.lost_after = 3 if runs == 1 else 15 if runs == 2 else 2 + 2 * runs
        try:
            done = asyncio.run(run())
        except HostLost:
            assert runs < 12
    assert runs > 3
    assert done.changed == ("start",)
    assert "environment" not in done.seconds
    local.lost_after = 10**9

    # What its agent says to a wrong flag is told; with the flag taken back it runs again.
    wrong = replace(PI, extra_flags=("--quota-mb", "-5"))
    with pytest.raises(CommandFailed, match=r"(?s)ended with status 2 .*quota-mb: -5.0 is negative") as raised:
        asyncio.run(provision(local, wrong, identity=identity, wheels=few_wheels, tell=steps.append))
    assert "run the same command again" in raised.value.hint
    assert asyncio.run(run()).changed == ("service", "start")
    assert asyncio.run(run()).changed == ()
    assert any("the agent finds no broker yet and is started again" in line for line in steps)
    # A connection refused is waited out by the service, and is in the log.
    deadline = time.monotonic() + 20
    while (
        "cannot be reached" not in (log := asyncio.run(agent_log(local, IMPATIENT, 3))) and time.monotonic() < deadline
    ):
        time.sleep(0.2)
    assert "mqtts://127.0.0.1:1 cannot be reached" in log

    place = local.home / PI.folder
    key, running = (place / "identity/device.key").read_bytes(), (place / "agent.pid").read_text()
    newer = next_release(few_wheels, tmp_path / "newer")
    steps.clear()
    local.calls, local.lost_after = 0, 6  # with the new environment in use and the old agent running
    with pytest.raises(HostLost, match=r"at the step 'key', finished before: .*, environment"):
        asyncio.run(provision(local, IMPATIENT, identity=identity, wheels=newer, tell=steps.append))
    (sent,) = [line for line in steps if line.startswith("  ")]
    assert re.fullmatch(rf"  1 of 1: apportion-{re.escape(RELEASE)}-py3-none-any\.whl, 0\.\d MB", sent)
    local.lost_after = 10**9
    upgraded = asyncio.run(provision(local, IMPATIENT, identity=identity, wheels=newer, tell=steps.append))
    assert upgraded.changed == ("start",)
    assert (place / "environment/lib/apportion/new").read_bytes() == b"new"
    assert len(list((place / "environments").iterdir())) == 1
    assert (upgraded.serial, key) == (done.serial, (place / "identity/device.key").read_bytes())
    assert (place / "agent.pid").read_text() != running


@pytest.mark.slow
def test_a_failed_first_run_leaves_host_and_authority_as_they_were(
    local: LocalHost, identity: Path, few_wheels: Wheels, tmp_path: Path
) -> None:
    before = listing(local.home)
    other = make_request(tmp_path / "other", "pi-07").request.read_bytes()
    with Authority(identity) as authority:
        standing = authority.sign_device(other, "pi-07").certificate
    told: list[str] = []
    with pytest.raises(IdentityRefused, match="device 'pi-07' has a certificate with another key") as refused:
        asyncio.run(provision(local, PI, identity=identity, wheels=few_wheels, tell=told.append))
    assert "--replace" in refused.value.hint
    assert listing(local.home) == before
    assert "taken back on the host: folder" in told

    local.add_program(
        "chmod", 'case "$2" in *run-agent.new) echo "chmod: not today" >&2; exit 1;; esac\nexec /bin/chmod "$@"'
    )
    with pytest.raises(CommandFailed, match="the step 'service' failed with status 1: chmod: not today"):
        asyncio.run(provision(local, PI, identity=identity, wheels=few_wheels, tell=told.append, replace=True))
    assert listing(local.home) == before
    with Authority(identity) as authority:
        issued = authority.records.certificates("device", "pi-07")
    assert [c.serial == standing.serial for c in issued] == [True, False]
    assert all(c.revoked_at is not None for c in issued)


def test_the_key_stays_on_the_host(local: LocalHost, identity: Path) -> None:
    """With an environment that lends this one's packages: what matters is what is asked for and what is answered."""
    asyncio.run(local.run(commands.make_folder(PI)))
    environment = local.home / PI.folder / "environment/bin"
    environment.mkdir(parents=True)
    (environment / "python").write_text(f'#!/bin/sh\nPYTHONPATH={os.getcwd()} exec {sys.executable} "$@"\n')
    (environment / "python").chmod(0o755)
    done = asyncio.run(local.run(commands.make_request(PI) + commands.show_request(PI)))
    assert done.status == 0, done.stderr
    assert done.stdout.startswith("changed\n-----BEGIN CERTIFICATE REQUEST-----")
    again = asyncio.run(local.run(commands.make_request(PI) + commands.show_request(PI)))
    assert again.stdout == done.stdout.removeprefix("changed\n")
    key = serialization.load_pem_private_key((local.home / PI.folder / "identity/device.key").read_bytes(), None)
    with Authority(identity) as authority:
        issued = authority.sign_device(again.stdout.encode(), "pi-07")
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    assert load_pem_x509_certificate(issued.certificate.pem).public_key() == key.public_key()


def test_an_unfit_host_is_named_before_anything_is_made_for_it(local: LocalHost, identity: Path) -> None:
    local.add_program("uname", "echo riscv64")
    before = listing(local.home)
    with pytest.raises(HostUnfit, match="local cannot become pi-07 and was left as it was: its processor is riscv64"):
        asyncio.run(provision(local, PI, identity=identity, wheels=unused, tell=lambda line: None))
    assert listing(local.home) == before


def test_a_host_whose_space_ends_in_the_copy_is_left_as_it_was(
    start_sshd: StartSshd, identity: Path, wheels: Wheels
) -> None:
    """It says that it has space, as one does whose other programs take it meanwhile."""
    df = "echo head; echo /dev/root 9999999 99 9999900 1% /"
    with start_sshd(home_mb=8, programs={"df": df}) as server:
        with pytest.raises(CommandFailed, match=r"No space left on device; the packages need \d+ MB in all") as raised:
            over_ssh(server, identity, wheels, told=[])
        assert server.listing() == {}
    assert "free some space there" in raised.value.hint


def test_no_authority_no_connection_is_used(local: LocalHost, tmp_path: Path) -> None:
    with pytest.raises(IdentityRefused):
        asyncio.run(provision(local, PI, identity=tmp_path / "none", wheels=unused, tell=lambda line: None))
    assert local.calls == 0
