"""A phone as adb shows it: which one is meant, what its shell tells, and a local port that leads to a port of its.

Nothing is changed on the phone. adb itself is spoken with through adbutils; where no adb server runs, it starts one.
"""

from __future__ import annotations

import contextlib
import hashlib
import socket
import subprocess
from dataclasses import dataclass
from typing import Any

from coordinator.fleet.host import HostUnfit, HostUnreachable
from edge.contracts.errors import ConfigError

_LOCAL_PORTS = range(28_000, 30_000)
_ANSWER_S = 5.0
_SHELL_S = 20.0
_TERMUX = "com.termux"
_PHONES = "docs/hardware/phones.md"

_STATES = {
    "unauthorized": (
        "has not allowed this computer",
        "unlock it, tick 'Always allow from this computer' in its dialog; none? unplug it, Developer options > "
        "Revoke USB debugging authorisations, plug it in again",
    ),
    "authorizing": ("is being asked whether it allows this computer", "answer its dialog, then run this again"),
    "offline": (
        "does not answer",
        "unlock it and plug it in again; a cable that only charges will not do; then: adb kill-server",
    ),
    "no": (
        "may not be opened by this user",
        "sudo apt install android-sdk-platform-tools-common (udev rules), then plug it in again",
    ),
}


@dataclass(frozen=True)
class Phone:
    """What adb's shell tells of a phone.

    Attributes:
        android: release, such as ``14``; empty when it does not say.
        has_termux: whether the app is installed.
    """

    serial: str
    model: str
    android: str
    is_64_bit: bool
    has_termux: bool

    def __str__(self) -> str:
        """For messages."""
        return f"{self.serial} ({self.model or 'model unknown'}, Android {self.android or 'unknown'})"


class Forward:
    """A local port that leads to ``port`` of the phone.

    Attributes:
        port: the local one.
    """

    def __init__(self, client: Any, serial: str, port: int) -> None:
        self._client = client
        self._serial = serial
        remote = f"tcp:{port}"
        standing = [item.local for item in client.forward_list(serial) if item.remote == remote]
        self._is_ours = not standing
        self.port = int(standing[0].removeprefix("tcp:")) if standing else self._make(remote)

    def _make(self, remote: str) -> int:
        from adbutils import AdbError

        # By the serial, so that known hosts know the phone again; the next one where that is taken.
        first = int.from_bytes(hashlib.sha256(self._serial.encode()).digest()[:4], "big")
        for number in range(20):
            port = _LOCAL_PORTS[(first + number) % len(_LOCAL_PORTS)]
            with contextlib.suppress(AdbError):
                self._client.forward(self._serial, f"tcp:{port}", remote, norebind=True)
                return port
        raise HostUnreachable(
            f"adb:{self._serial}: no local port could be forwarded to it",
            hint="adb forward --remove-all ends the forwards that are left over",
        )

    def end(self) -> None:
        """Remove it, unless it was there before; harmless when the phone has gone."""
        from adbutils import AdbError

        if self._is_ours:
            self._is_ours = False
            # As the device's forward_remove, which leaves its socket open when the phone has gone.
            with contextlib.suppress(AdbError, OSError), self._client.make_connection() as connection:
                connection.send_command(f"host-serial:{self._serial}:killforward:tcp:{self.port}")
                connection.check_okay()


def reach_phone(wanted: str, port: int) -> tuple[Phone, Forward]:
    """The phone with the serial number ``wanted`` (empty: the only one) and a forward to its sshd, which has answered.

    Raises:
        ConfigError: adbutils is not installed.
        HostUnreachable: no such phone, it does not allow this computer, or no sshd answers on it.
        HostUnfit: its system is 32-bit.
    """
    try:
        from adbutils import AdbClient, AdbError
    except ImportError as error:
        raise ConfigError(
            [f"adb needs the package adbutils ({error})"], hint="pip install 'apportion[fleet]'"
        ) from error
    try:
        client = AdbClient(socket_timeout=_SHELL_S)
        _start_server(client)
        device = client.device(_choose([(found.serial, found.state) for found in client.list()], wanted))
        phone = _ask(device)
    except (AdbError, OSError, subprocess.TimeoutExpired) as error:
        raise HostUnreachable(
            f"adb does not answer ({error})",
            hint="sudo apt install adb; adb devices shows what it sees",
        ) from error
    if not phone.is_64_bit:
        raise HostUnfit(
            f"{phone}: its system is 32-bit: no training runtime is built for that", hint="take a phone with 64 bits"
        )
    try:
        forward = Forward(client, phone.serial, port)
    except (AdbError, OSError) as error:
        raise HostUnreachable(f"adb:{phone.serial}: nothing can be forwarded to it ({error})") from error
    greeting = _greeting(forward.port)
    if not greeting.startswith(b"SSH-"):
        forward.end()
        raise _no_sshd(phone, port, greeting)
    return phone, forward


def _start_server(client: Any) -> None:
    """adb's server on this machine, which holds the cables; adbutils would start it too, and leave a socket open."""
    from adbutils import adb_path

    try:
        socket.create_connection((client.host, client.port), _ANSWER_S).close()
    except OSError:
        command = [adb_path(), "-P", str(client.port), "start-server"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SHELL_S, check=False)
        if done.returncode:
            raise OSError((done.stderr or done.stdout).strip()[-200:] or f"status {done.returncode}") from None
        socket.create_connection((client.host, client.port), _ANSWER_S).close()


def _choose(phones: list[tuple[str, str]], wanted: str) -> str:
    """The serial number of the phone that is meant.

    Raises:
        HostUnreachable: there is none, there are several, or it cannot be used as it is.
    """
    listed = ", ".join(f"{serial} ({state})" for serial, state in phones) or "none"
    usable = [serial for serial, state in phones if state == "device"]
    if wanted:
        found = [(serial, state) for serial, state in phones if serial == wanted]
    else:
        found = [(serial, "device") for serial in usable] or phones
    if not found:
        raise HostUnreachable(
            f"adb sees no phone {wanted or 'at all'}; it sees: {listed}",
            hint="on the phone: Settings > About > tap the build number 7 times, Developer options > USB debugging; "
            "use a cable that carries data; adb devices shows it then",
        )
    if len(found) > 1:
        raise HostUnreachable(f"adb sees several phones: {listed}", hint=f"say which: --adb {found[0][0]}")
    serial, state = found[0]
    if state != "device":
        what, hint = _STATES.get(state, (f"is in state '{state}'", "start it into Android and plug it in again"))
        raise HostUnreachable(f"the phone {serial} {what} (adb: {state}); nothing was changed there", hint=hint)
    return serial


def _ask(device: Any) -> Phone:
    """What adb's shell tells, in one command that changes nothing."""
    told = device.shell(
        "getprop ro.product.model; getprop ro.build.version.release; getprop ro.product.cpu.abilist64; "
        f"echo termux=$(pm path {_TERMUX} 2>/dev/null)",
        timeout=_SHELL_S,
    )
    lines = [*str(told).replace("\r", "").split("\n"), "", "", "", ""]
    return Phone(device.serial, lines[0].strip(), lines[1].strip(), bool(lines[2].strip()), "termux=package:" in told)


def _greeting(port: int) -> bytes:
    """The first bytes that come through the forward; none when nobody listens on the phone."""
    try:
        with socket.create_connection(("127.0.0.1", port), _ANSWER_S) as connection:
            connection.settimeout(_ANSWER_S)
            return connection.recv(64)
    except OSError:
        return b""


def _no_sshd(phone: Phone, port: int, greeting: bytes) -> HostUnreachable:
    if greeting:
        return HostUnreachable(
            f"{phone}: what listens on its port {port} is no SSH server", hint=f"free that port on it; see {_PHONES}"
        )
    if phone.has_termux:
        return HostUnreachable(
            f"{phone}: no SSH server answers on its port {port}; Termux is installed",
            hint="in Termux: termux-wake-lock; proot-distro login debian --user phone -- "
            f"sh -c '/usr/sbin/sshd -D -f ~/sshd_config'; the first time, as {_PHONES} says",
        )
    return HostUnreachable(
        f"{phone}: no SSH server answers on its port {port}, and Termux is not installed",
        hint=f"install Termux (F-Droid) and Debian in it, or Android's own Linux terminal, as {_PHONES} says",
    )
