"""Phones over adb: which one is meant, what is in the way, and its own sshd through the cable.

adb's server is faked at its socket (fake_adb.py), adbutils is not; the sshd at the end of the forward is a real one.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from coordinator.fleet.adb_host import connect_adb
from coordinator.fleet.facts import probe_host
from coordinator.fleet.host import HostLost, HostUnfit, HostUnreachable
from coordinator.fleet.ssh_host import NEW
from edge.__main__ import main
from tests.coordinator.fleet.fake_adb import PIXEL, FakeAdb, FakePhone, fake_adb
from tests.coordinator.fleet.ssh_server import SshServer

SERIAL = "R58M123ABC"
Plug = Callable[..., FakeAdb]


@pytest.fixture
def plug(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Plug]:
    """Connects phones: ``plug((SERIAL, {"state": "offline"}), ...)``."""
    with contextlib.ExitStack() as stack:

        def start(*phones: tuple[str, dict[str, object]]) -> FakeAdb:
            made = [FakePhone(serial, tmp_path / serial, **options) for serial, options in phones]  # type: ignore[arg-type]
            server = stack.enter_context(fake_adb(*made))
            monkeypatch.setenv("ANDROID_ADB_SERVER_PORT", str(server.port))
            return server

        yield start


def refusal(kind: type[Exception] = HostUnreachable, serial: str | None = None) -> tuple[str, str]:
    """What connecting is refused with, and its hint."""
    with pytest.raises(kind) as error:
        asyncio.run(connect_adb(serial))
    return str(error.value), error.value.hint  # type: ignore[attr-defined]


def test_no_phone_says_how_adb_comes_to_see_one(plug: Plug) -> None:
    plug()
    message, hint = refusal()
    assert message == "adb sees no phone at all; it sees: none"
    assert "USB debugging" in hint


def test_several_phones_are_listed(plug: Plug) -> None:
    plug((SERIAL, {}), ("emulator-5554", {}))
    message, hint = refusal()
    assert message == f"adb sees several phones: {SERIAL} (device), emulator-5554 (device)"
    assert hint == f"say which: --adb {SERIAL}"


def test_unknown_serial_lists_those_that_are_there(plug: Plug) -> None:
    plug((SERIAL, {}))
    assert refusal(serial="phone@other")[0] == f"adb sees no phone other; it sees: {SERIAL} (device)"


@pytest.mark.parametrize(
    ("state", "words", "advice"),
    [
        ("unauthorized", "has not allowed this computer (adb: unauthorized)", "Always allow from this computer"),
        ("offline", "does not answer (adb: offline)", "adb kill-server"),
        ("no permissions (user in plugdev group; are your udev rules wrong?)", "may not be opened", "udev rules"),
        ("recovery", "is in state 'recovery'", "start it into Android"),
    ],
)
def test_phone_that_cannot_be_used_says_what_to_do(plug: Plug, state: str, words: str, advice: str) -> None:
    server = plug((SERIAL, {"state": state}))
    for serial in (None, SERIAL):
        message, hint = refusal(serial=serial)
        assert f"the phone {SERIAL} {words}" in message
        assert "nothing was changed there" in message
        assert advice in hint
    assert server.phones[0].commands == []


def test_the_usable_phone_is_taken_when_another_is_not(plug: Plug) -> None:
    plug(("first", {"state": "unauthorized"}), (SERIAL, {}))
    assert refusal()[0].startswith(f"{SERIAL} (Pixel 6, Android 14)")


def test_phone_of_32_bits_is_refused(plug: Plug) -> None:
    server = plug((SERIAL, {"properties": {**PIXEL, "ro.product.cpu.abilist64": ""}}))
    message, _ = refusal(HostUnfit)
    assert message == f"{SERIAL} (Pixel 6, Android 14): its system is 32-bit: no training runtime is built for that"
    assert server.forwards == {}


@pytest.mark.parametrize(
    ("packages", "words", "advice"),
    [
        ((), "and Termux is not installed", "install Termux (F-Droid)"),
        (("com.termux",), "Termux is installed", "proot-distro login debian --user phone -- sh -c '/usr/sbin/sshd"),
    ],
)
def test_phone_without_sshd_says_what_it_has(plug: Plug, packages: tuple[str, ...], words: str, advice: str) -> None:
    server = plug((SERIAL, {"packages": packages}))
    message, hint = refusal()
    assert f"{SERIAL} (Pixel 6, Android 14): no SSH server answers on its port 8022" in message
    assert words in message
    assert advice in hint
    assert server.forwards == {}


def test_something_else_on_the_port_is_no_sshd(plug: Plug) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        server = plug((SERIAL, {"listening": {8022: other.getsockname()[1]}}))
        other.settimeout(10)

        async def meet() -> None:
            connecting = asyncio.create_task(connect_adb())
            connection, _ = await asyncio.to_thread(other.accept)
            connection.sendall(b"220 ftp\r\n")
            with pytest.raises(HostUnreachable, match="what listens on its port 8022 is no SSH server"):
                await connecting
            connection.close()

        asyncio.run(meet())
    assert server.forwards == {}


def test_adb_that_is_not_there_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        monkeypatch.setenv("ANDROID_ADB_SERVER_PORT", str(reserved.getsockname()[1]))
        monkeypatch.setenv("ADBUTILS_ADB_PATH", "true")  # starts, and serves nothing
        message, hint = refusal()
    assert message.startswith("adb does not answer")
    assert "sudo apt install adb" in hint


def test_adb_itself_sees_the_same_phone(plug: Plug) -> None:
    """The fake speaks adb's protocol, not adbutils' idea of it."""
    adb = shutil.which("adb")
    if adb is None:
        pytest.skip("adb is not installed")
    server = plug((SERIAL, {}), ("other", {"state": "offline"}))

    def run(*words: str) -> tuple[int, str]:
        command = [adb, "-P", str(server.port), *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
        return done.returncode, done.stdout + done.stderr

    assert f"{SERIAL}\tdevice\nother\toffline\n" in run("devices")[1]
    assert run("-s", SERIAL, "shell", "getprop ro.product.model") == (0, "Pixel 6\n")
    assert run("-s", "other", "shell", "id") == (1, "error: device offline\n")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    assert run("-s", SERIAL, "forward", f"tcp:{port}", "tcp:8022")[0] == 0
    assert server.forwards[port][:2] == (SERIAL, 8022)
    assert run("-s", SERIAL, "forward", "--remove", f"tcp:{port}")[0] == 0
    assert server.forwards == {}


def test_adbs_own_server_without_a_phone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    adb = shutil.which("adb")
    if adb is None:
        pytest.skip("adb is not installed")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    monkeypatch.setenv("ANDROID_ADB_SERVER_PORT", str(port))
    monkeypatch.setenv("HOME", str(tmp_path))  # it makes a key there
    try:
        assert refusal(serial="no-such-phone")[0] == "adb sees no phone no-such-phone; it sees: none"
    finally:
        subprocess.run([adb, "-P", str(port), "kill-server"], timeout=20, check=True, capture_output=True)


@pytest.fixture
def phone(plug: Plug, native_host: SshServer) -> FakeAdb:
    """A phone on whose port 8022 a real sshd listens."""
    return plug((SERIAL, {"listening": {8022: native_host.port}, "packages": ("com.termux",)}))


@contextlib.asynccontextmanager
async def connected(server: SshServer, folder: Path, **options: object) -> AsyncIterator[object]:
    given: dict[str, object] = {"key": server.keys.client, "accept_fingerprint": server.keys.fingerprint, **options}
    host = await connect_adb(f"{server.user}@", known_hosts=folder / "known", **given)  # type: ignore[arg-type]
    try:
        yield host
    finally:
        await host.close()


@pytest.mark.slow
def test_phone_is_a_host_through_its_sshd(phone: FakeAdb, native_host: SshServer, tmp_path: Path) -> None:
    (tmp_path / "wheel").write_bytes(bytes(range(256)) * 2000)

    async def work() -> None:
        async with connected(native_host, tmp_path) as host:
            assert host.name == f"adb:{SERIAL}"
            done = await host.run("echo out; echo err >&2; cat; exit 7", stdin=b"in")
            assert (done.status, done.stdout, done.stderr) == (7, "out\nin", "err\n")
            await host.put(tmp_path / "wheel", "wheels.bin")
            facts = await probe_host(host)
            assert facts.home == str(native_host.home)
            assert len(phone.forwards) == 1

    asyncio.run(work())
    assert (native_host.home / "wheels.bin").read_bytes() == (tmp_path / "wheel").read_bytes()
    assert phone.forwards == {}  # what was made for it went with it
    assert [command for command in phone.phones[0].commands if "getprop" not in command] == []


def test_phone_is_known_again_by_its_serial(phone: FakeAdb, native_host: SshServer, tmp_path: Path) -> None:
    async def port() -> int:
        async with connected(native_host, tmp_path, accept_fingerprint=""):
            return next(iter(phone.forwards))

    with pytest.raises(HostUnreachable, match=f"^adb:{SERIAL} is not known yet") as error:
        asyncio.run(port())
    assert "ssh-keygen -lf" in error.value.hint
    assert native_host.keys.fingerprint in str(error.value)
    assert phone.forwards == {}

    async def accept() -> int:
        async with connected(native_host, tmp_path, accept_fingerprint=NEW):
            return next(iter(phone.forwards))

    first = asyncio.run(accept())
    assert asyncio.run(port()) == first  # known now, and nothing is accepted


def test_phone_that_lets_nobody_in_says_how(phone: FakeAdb, native_host: SshServer, tmp_path: Path) -> None:
    async def connect() -> None:
        async with connected(native_host, tmp_path, key=native_host.keys.host):
            pass

    with pytest.raises(HostUnreachable, match=f"^adb:{SERIAL} does not let us in") as error:
        asyncio.run(connect())
    assert "passwd, in the Debian or in Termux" in error.value.hint
    assert phone.forwards == {}


def test_password_opens_the_phone(phone: FakeAdb, native_host: SshServer, tmp_path: Path) -> None:
    if not native_host.keys.password:
        pytest.skip("no openssl here to hash a password with")

    async def user() -> str:
        async with connected(native_host, tmp_path, key=None, password=native_host.keys.password) as host:
            return (await host.run("id -un")).stdout.strip()

    assert asyncio.run(user()) == native_host.user


def test_unplugged_phone_is_a_lost_host_with_its_name(phone: FakeAdb, native_host: SshServer, tmp_path: Path) -> None:
    async def work() -> None:
        async with connected(native_host, tmp_path) as host:
            running = asyncio.create_task(host.run("sleep 30"))
            await asyncio.sleep(0.5)
            phone.phones.clear()
            native_host.drop()
            with pytest.raises(HostLost, match=f"^adb:{SERIAL}: the connection ended"):
                await running

    asyncio.run(work())


def test_forward_of_the_owners_stays(phone: FakeAdb, native_host: SshServer, tmp_path: Path) -> None:
    import adbutils

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    adbutils.AdbClient().device(SERIAL).forward(f"tcp:{port}", "tcp:8022", norebind=True)

    async def connect() -> list[int]:
        async with connected(native_host, tmp_path):
            return list(phone.forwards)

    assert asyncio.run(connect()) == [port]
    assert list(phone.forwards) == [port]


@pytest.mark.slow
def test_probe_of_a_phone_goes_through_the_verb(
    phone: FakeAdb,
    native_host: SshServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))  # its known hosts are not the owner's
    words = ["device", "probe", f"{native_host.user}@{SERIAL}", "--adb", "--key", str(native_host.keys.client)]
    assert main([*words, "--json"]) == 3
    refused = json.loads(capsys.readouterr().out)["error"]
    assert f"adb:{SERIAL} is not known yet" in refused["message"]
    assert main([*words, "--accept-host-key", native_host.keys.fingerprint]) == 0
    shown = capsys.readouterr().out
    assert f"a device can be made of it: apportion device add --adb {native_host.user}@{SERIAL}" in shown
    assert main([*words, "--json"]) == 0  # known now
    line = json.loads(capsys.readouterr().out)
    assert (line["fit"], line["facts"]["home"]) == (True, str(native_host.home))
    assert phone.forwards == {}
