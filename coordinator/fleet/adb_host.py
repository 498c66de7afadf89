"""A phone over adb: its own SSH server, reached through the cable; nothing of the phone's network is needed.

adb's shell is the user ``shell``: it may push files and start programs in a folder of its own, and cannot enter the
folders of an app, where Termux and the Debian in it live. So the one way in that works on any phone is their sshd, on
a port above 1024, through ``adb forward``. What the owner does for that: docs/hardware/phones.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

from coordinator.fleet.adb_phone import Forward, reach_phone
from coordinator.fleet.host import CommandFailed, Completed, Host, HostLost, HostUnreachable
from coordinator.fleet.ssh_host import connect_ssh

SSHD_PORT = 8022
"""Of Termux's sshd, and by our advice of a Debian's: an app cannot listen below 1024."""
USER = "phone"
"""By our advice the user of the Debian. Its sshd must not run as root: before a login it changes its root folder, which
ends proot and everything in it (measured with Termux's proot of 2026-11; as a user 38 of 38 connections went well)."""


class AdbHost:
    """Implements :class:`coordinator.fleet.host.Host` by the phone's sshd; made by :func:`connect_adb`."""

    def __init__(self, host: Host, serial: str, forward: Forward) -> None:
        self._host = host
        self._serial = serial
        self._forward = forward

    @property
    def name(self) -> str:
        """``adb:SERIAL``."""
        return f"adb:{self._serial}"

    async def run(self, command: str, *, stdin: bytes = b"", timeout_s: float = 120.0) -> Completed:
        """As :meth:`coordinator.fleet.host.Host.run`."""
        with _named(self._host.name, self.name):
            return await self._host.run(command, stdin=stdin, timeout_s=timeout_s)

    async def put(self, source: Path, target: str) -> None:
        """As :meth:`coordinator.fleet.host.Host.put`."""
        with _named(self._host.name, self.name):
            await self._host.put(source, target)

    async def close(self) -> None:
        """As :meth:`coordinator.fleet.host.Host.close`; the forward ends with it, if it was made here."""
        try:
            await self._host.close()
        finally:
            await asyncio.to_thread(self._forward.end)


async def connect_adb(
    serial: str | None = None,
    *,
    port: int = SSHD_PORT,
    key: Path | None = None,
    password: str | None = None,
    known_hosts: Path | None = None,
    accept_fingerprint: str = "",
) -> AdbHost:
    """An open connection to the sshd on a phone.

    Args:
        serial: as ``adb devices`` shows it, ``user@`` may be before it (else :data:`USER`); None: the only phone.
        port: of the sshd on the phone.
        key, password, known_hosts, accept_fingerprint: as :func:`coordinator.fleet.ssh_host.connect_ssh`. The phone is
            known by its serial: a forward has the same local port whenever that is free.

    Raises:
        ConfigError: adbutils or adb is not installed.
        HostUnreachable: no such phone, it does not allow this computer, or no sshd answers on it.
        HostUnfit: its system is 32-bit.
    """
    user, _, wanted = (serial or "").rpartition("@")
    phone, forward = await asyncio.to_thread(reach_phone, wanted, port)
    target = f"{user or USER}@127.0.0.1"
    try:
        with _named(target, f"adb:{phone.serial}"):
            host = await connect_ssh(
                target,
                port=forward.port,
                key=key,
                password=password,
                known_hosts=known_hosts,
                accept_fingerprint=accept_fingerprint,
            )
    except HostUnreachable as error:
        await asyncio.to_thread(forward.end)
        raise HostUnreachable(str(error), hint=_hint(error, user, forward.port)) from error
    except BaseException:
        await asyncio.to_thread(forward.end)
        raise
    return AdbHost(host, phone.serial, forward)


def _hint(error: HostUnreachable, user: str, port: int) -> str:
    """What to do on a phone, where SSH's own advice is for a board in the network."""
    text = str(error)
    if "let us in" in text:
        return (
            "set a password on the phone (passwd, in the Debian or in Termux) and give --ask-password, or put a public "
            f"key into its ~/.ssh/authorized_keys and give --key; as another user: {user or 'USER'}@SERIAL"
        )
    if "is not known yet" in text:
        return (
            "compare it with what the phone prints for `ssh-keygen -lf host_key.pub` (where docs/hardware/phones.md "
            "puts that key; else of /etc/ssh/ssh_host_ed25519_key.pub), then give --accept-host-key SHA256:..."
        )
    if "has another for it" in text:
        return f"if its SSH server was set up anew: ssh-keygen -R '[127.0.0.1]:{port}', then accept the new key"
    return "start its SSH server again; docs/hardware/phones.md says how"


@contextlib.contextmanager
def _named(inner: str, shown: str) -> Iterator[None]:
    """Errors name the phone: nobody wrote the address of the forward's end."""
    try:
        yield
    except (HostUnreachable, HostLost, CommandFailed) as error:
        text = re.sub(rf"{re.escape(inner)}\b", shown, str(error))
        raise type(error)(text, hint=error.hint) from error
