"""How ``apportion device`` gets to a machine: what the owner wrote, and the open connection that comes of it."""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from coordinator.fleet.book import DeviceEntry, Way
from coordinator.fleet.host import Host, HostUnreachable
from edge.contracts.errors import ConfigError

_PORT = re.compile(r"(?P<target>(?:[^@]+@)?(?:\[[0-9A-Fa-f:.%]+\]|[^@:\s]+)):(?P<port>\d{1,5})")


@dataclass(frozen=True, kw_only=True)
class Login:
    """What opens machines in this command; the password is never printed or kept.

    Attributes:
        port, key: None and empty: what ``~/.ssh/config`` says, or the usual.
        fingerprint: of the host key to accept when a host is not known yet.
        known_hosts: None: ``~/.ssh/known_hosts``.
    """

    port: int | None = None
    key: str = ""
    password: str = ""
    fingerprint: str = ""
    known_hosts: Path | None = None

    def __repr__(self) -> str:
        """What is no secret."""
        return f"Login(port {self.port}, key {self.key or 'usual'}{', password' if self.password else ''})"


@dataclass(frozen=True)
class Reach:
    """One machine and what opens it.

    Attributes:
        target: ``pi@raspberrypi.local``, or ``[user@]serial`` of a phone; empty with adb: the only one there is.
        port: of SSH; 0: as ``~/.ssh/config`` says, else 22; on a phone 8022.
    """

    way: Way
    target: str
    port: int = 0
    login: Login = field(default_factory=Login)

    @property
    def shown(self) -> str:
        """As people write it."""
        if self.way == "claim":
            return "a device that comes by itself"
        if self.way == "adb":
            return f"adb:{self.target}" if self.target else "adb"
        return f"{self.target}:{self.port}" if self.port else self.target

    @classmethod
    def parse(cls, text: str, login: Login, *, adb: bool = False) -> Reach:
        """What ``text`` means: a serial number with ``adb``, else ``[user@]host[:port]``.

        Raises:
            ConfigError: it is neither.
        """
        if adb:
            return cls("adb", text, login.port or 0, login)
        found = _PORT.fullmatch(text)
        target, port = (found["target"], int(found["port"])) if found else (text, login.port or 0)
        if not target or target.startswith("-") or any(c.isspace() for c in target) or not 0 <= port <= 65_535:
            raise ConfigError([f"TARGET: {text[:80]!r} is not user@host or user@host:port"])
        return cls("ssh", target, port, login)

    @classmethod
    def of_entry(cls, entry: DeviceEntry, login: Login) -> Reach:
        """How the book says that a device is reached; ``login`` goes before it."""
        return cls(entry.way, entry.target, login.port or entry.port, replace(login, key=login.key or entry.key))


@contextlib.asynccontextmanager
async def open_host(reach: Reach) -> AsyncIterator[Host]:
    """The connection, closed with the context.

    Raises:
        HostUnreachable: there is none, or the host refuses us.
    """
    if reach.way == "claim":
        raise HostUnreachable(
            "the device came by itself, with a claim link or a script: nothing connects to it from here",
            hint="on the device: sh install.sh --remove, or see apportion agent --help",
        )
    login = reach.login
    login = reach.login
    options: dict[str, Any] = {
        "key": Path(login.key).expanduser() if login.key else None,
        "password": login.password or None,
        "known_hosts": login.known_hosts,
        "accept_fingerprint": login.fingerprint,
    }
    if reach.port:
        options["port"] = reach.port
    host: Host
    if reach.way == "adb":
        from coordinator.fleet.adb_host import connect_adb

        host = await connect_adb(reach.target or None, **options)
    else:
        from coordinator.fleet.ssh_host import connect_ssh

        host = await connect_ssh(reach.target, **options)
    try:
        yield host
    finally:
        await host.close()


async def name_of(host: Host) -> str:
    """A device id made of the name that the machine has for itself.

    Raises:
        ConfigError: it has none that can be one.
    """
    told = (await host.run("uname -n 2>/dev/null || hostname")).stdout.strip()
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", told.partition(".")[0])[:64].strip("-._")
    if host.name.startswith("adb:"):  # every phone calls itself localhost
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", f"phone-{host.name.removeprefix('adb:')}")[:64]
    if not name or name == "localhost":
        raise ConfigError(
            [f"{host.name} calls itself {told[:80]!r}, which names no device"], hint="give it a name: --device ID"
        )
    return name
