"""Hosts over SSH against a real sshd: who is let in, whose key is taken, commands, copies, and connections that end."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest

from coordinator.fleet.host import CommandFailed, HostLost, HostUnreachable
from coordinator.fleet.ssh_host import NEW, SshHost, connect_ssh
from edge.contracts.errors import ConfigError
from tests.coordinator.fleet.conftest import StartSshd
from tests.coordinator.fleet.cutting_relay import CuttingRelay
from tests.coordinator.fleet.ssh_server import SshServer, make_key

Given = TypeVar("Given")


def connected(server: SshServer, do: Callable[[SshHost], Awaitable[Given]], *, port: int = 0) -> Given:
    """What ``do`` gives with a connection to ``server``."""

    async def session() -> Given:
        host = await connect_ssh(
            f"{server.user}@{server.host}",
            port=port or server.port,
            key=server.keys.client,
            known_hosts=server.keys.host.with_name("known"),
            accept_fingerprint=server.keys.fingerprint,
        )
        try:
            return await do(host)
        finally:
            await host.close()

    return asyncio.run(session())


def refused(server: SshServer, **options: object) -> HostUnreachable:
    """Why a connection with ``options`` is not made."""
    before = server.listing()
    known = {"known_hosts": server.keys.host.with_name("none"), "key": server.keys.client, "accept_fingerprint": NEW}
    with pytest.raises(HostUnreachable) as raised:
        asyncio.run(connect_ssh(f"pi@{server.host}", port=server.port, **{**known, **options}))  # type: ignore[arg-type]
    assert server.listing() == before
    return raised.value


def test_commands_say_status_and_both_streams(native_host: SshServer) -> None:
    done = connected(native_host, lambda host: host.run("cat; echo wrong >&2; exit 7", stdin=b"a\xffb\n"))
    assert (done.status, done.stdout, done.stderr) == (7, "a�b\n", "wrong\n")


def test_a_command_ended_by_a_signal_has_a_status_above_128(native_host: SshServer) -> None:
    assert connected(native_host, lambda host: host.run("kill -9 $$")).status == 128 + 9


def test_commands_that_never_end_are_lost(native_host: SshServer) -> None:
    with pytest.raises(HostLost, match=r"pi@127\.0\.0\.1: no answer within 0.3 s"):
        connected(native_host, lambda host: host.run("sleep 20", timeout_s=0.3))


def test_a_copied_file_is_the_same(native_host: SshServer, tmp_path: Path) -> None:
    source = tmp_path / "a wheel"
    source.write_bytes(bytes(range(256)) * 8000)
    connected(native_host, lambda host: host.put(source, "a place"))
    assert (native_host.home / "a place").read_bytes() == source.read_bytes()
    assert list(native_host.listing()) == ["a place"]


def test_passwords_let_in_and_wrong_ones_do_not(native_host: SshServer) -> None:
    if not native_host.keys.password:
        pytest.skip("no openssl here to hash a password with")

    async def login() -> str:
        host = await connect_ssh(
            f"pi@{native_host.host}",
            port=native_host.port,
            password=native_host.keys.password,
            known_hosts=native_host.keys.host.with_name("known"),
            accept_fingerprint=NEW,
        )
        done = await host.run("id -un")
        await host.close()
        return done.stdout.strip()

    assert asyncio.run(login()) == "pi"
    error = refused(native_host, key=None, password="another")
    assert "pi@127.0.0.1 does not let us in" in str(error)
    assert "or the password" in str(error)


def test_a_wrong_key_is_told_with_what_to_do(native_host: SshServer, tmp_path: Path) -> None:
    wrong = make_key(tmp_path / "other")
    error = refused(native_host, key=wrong)
    assert f"with the key {wrong}" in str(error)
    assert "ssh-copy-id pi@127.0.0.1" in error.hint


def test_a_file_that_is_no_key_is_refused_before_anything_is_sent(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("not a key")
    with pytest.raises(ConfigError, match="--key"):
        asyncio.run(connect_ssh("pi@127.0.0.1", port=1, key=tmp_path / "key", known_hosts=tmp_path / "none"))


def test_an_unknown_host_is_told_by_its_fingerprint(native_host: SshServer) -> None:
    error = refused(native_host, accept_fingerprint="")
    assert f"shows the key {native_host.keys.fingerprint}" in str(error)
    assert f"--accept-host-key {native_host.keys.fingerprint}" in error.hint
    other = refused(native_host, accept_fingerprint="SHA256:other")
    assert "and not SHA256:other, which was accepted" in str(other)
    assert not native_host.keys.host.with_name("none").exists()


def test_an_accepted_host_is_known_from_then_on(native_host: SshServer) -> None:
    connected(native_host, lambda host: host.run("true"))
    known = native_host.keys.host.with_name("known")
    assert known.read_text().count("ssh-ed25519") == 1

    async def again() -> None:
        host = await connect_ssh("pi@127.0.0.1", port=native_host.port, key=native_host.keys.client, known_hosts=known)
        await host.close()

    asyncio.run(again())
    assert known.read_text().count("ssh-ed25519") == 1


def test_a_host_whose_key_has_changed_is_never_accepted(native_host: SshServer, tmp_path: Path) -> None:
    known = tmp_path / "known_hosts"
    other = make_key(tmp_path / "other").with_suffix(".pub").read_text()
    known.write_text(f"[127.0.0.1]:{native_host.port} {other}")
    error = refused(native_host, known_hosts=known, accept_fingerprint=native_host.keys.fingerprint)
    assert "has another for it" in str(error)
    assert f"ssh-keygen -R '[127.0.0.1]:{native_host.port}'" in error.hint


def test_nobody_answering_is_told(tmp_path: Path) -> None:
    with pytest.raises(HostUnreachable, match=r"pi@127\.0\.0\.1 cannot be reached: it refuses connections"):
        asyncio.run(connect_ssh("pi@127.0.0.1", port=1, known_hosts=tmp_path / "none"))


def test_a_host_without_space_keeps_what_it_had(start_sshd: StartSshd, tmp_path: Path) -> None:
    source = tmp_path / "large"
    source.write_bytes(b"x" * 3_000_000)
    with start_sshd(home_mb=2) as server:
        with pytest.raises(CommandFailed, match=r"large.* cannot be written: .*No space left on device") as raised:
            connected(server, lambda host: host.put(source, "large"))
        assert server.listing() == {}
    assert "free some space" in raised.value.hint


def test_a_connection_cut_in_a_copy_leaves_no_half_file(
    native_host: SshServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = tmp_path / "large"
    source.write_bytes(hashlib.sha256(b"large").digest() * 200_000)
    with CuttingRelay(native_host.port) as relay:

        async def cut(host: SshHost) -> None:
            relay.cut_after(2_000_000)
            await host.put(source, "large")

        with pytest.raises(HostLost, match="the connection ended"):
            connected(native_host, cut, port=relay.port)
        assert relay.cuts == 1
    assert not (native_host.home / "large").exists()
    assert not [record for record in caplog.records if record.name == "asyncio"]


def test_a_host_that_goes_away_in_a_command_is_lost(native_host: SshServer) -> None:
    async def drop(host: SshHost) -> None:
        running = asyncio.create_task(host.run("echo here; sleep 20"))
        await asyncio.sleep(0.3)
        assert native_host.drop() > 0
        await running

    with pytest.raises(HostLost, match="the connection ended"):
        connected(native_host, drop)
