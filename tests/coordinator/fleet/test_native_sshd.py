"""The host that provisioning is tested against is what it says: another user, another home, droppable, small."""

from __future__ import annotations

import subprocess
from dataclasses import replace

import pytest

from tests.coordinator.fleet.conftest import StartSshd
from tests.coordinator.fleet.cutting_relay import CuttingRelay
from tests.coordinator.fleet.ssh_server import SshServer


def test_session_is_of_another_user_in_an_empty_home(native_host: SshServer) -> None:
    words = native_host.run("id -un; id -u; echo $HOME; pwd; python3 -c 'import venv; print(1)'").split()
    assert words == ["pi", "1000", str(native_host.home), str(native_host.home), "1"]
    assert native_host.listing() == {}
    native_host.run("mkdir a && echo hello > a/file && ln -s a b")
    assert native_host.listing() == {"a": "40755", "a/file": "100644 6", "b": "120777 -> a"}
    assert native_host.keys.fingerprint.startswith("SHA256:")


def test_home_of_a_few_megabytes_fills_up(start_sshd: StartSshd) -> None:
    with start_sshd(home_mb=2) as server:
        with pytest.raises(AssertionError, match="No space left on device"):
            server.run("head -c 3000000 /dev/zero > file")
        assert server.listing()["file"].split()[1] == str(2 << 20)


def copy(server: SshServer, port: int, size: int) -> int:
    """Exit status of a copy of ``size`` bytes through ``port``."""
    # A cut is an end of input to the far end: only what is whole has its name.
    whole = f'cat > file.part && [ "$(stat -c %s file.part)" = {size} ] && mv file.part file'
    command = replace(server, port=port).command(whole)
    return subprocess.run(command, input=b"x" * size, capture_output=True, check=False).returncode


def test_connection_through_the_relay_is_cut_once_where_told(native_host: SshServer) -> None:
    with CuttingRelay(native_host.port) as relay:
        relay.cut_after(1 << 20)
        assert (copy(native_host, relay.port, 4 << 20), relay.cuts) == (255, 1)
        assert "file" not in native_host.listing()
        assert (copy(native_host, relay.port, 4 << 20), relay.cuts) == (0, 1)
    assert (native_host.home / "file").stat().st_size == 4 << 20


def test_drop_ends_open_sessions_and_lets_new_ones_in(native_host: SshServer) -> None:
    with subprocess.Popen(native_host.command("echo here; exec sleep 60"), stdout=subprocess.PIPE) as waiting:
        assert waiting.stdout is not None
        assert waiting.stdout.readline() == b"here\n"
        assert native_host.drop() >= 1
        assert waiting.wait(10) == 255
    assert native_host.run("echo back").strip() == "back"


def test_programs_of_a_test_come_first(start_sshd: StartSshd) -> None:
    with start_sshd(programs={"uname": "echo armv7l"}) as server:
        assert server.run("uname -m").strip() == "armv7l"


def test_end_takes_along_what_sessions_left_running(start_sshd: StartSshd) -> None:
    with start_sshd() as server:
        server.run("sleep 1000 </dev/null >/dev/null 2>&1 &")
        (left,) = [child for child in server.process.first().children() if child.name() == "sleep"]
        assert left.is_running()
    assert not left.is_running()
