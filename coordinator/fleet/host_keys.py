"""Whether a host is the one we take it for: the keys that are known, and one that is accepted by its fingerprint.

Kept where OpenSSH's client keeps them, in its form, so that either knows what the other was told.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from coordinator.fleet.host import HostUnreachable
from edge.contracts.errors import ConfigError

NEW = "new"
"""In place of a fingerprint: whatever key a host has that is not known yet."""


class ShownKey:
    """The key an unknown host has shown, and whether it is the one that was accepted."""

    def __init__(self, accepted: str) -> None:
        self._accepted = accepted
        self.fingerprint = ""
        self.name = ""  # as known hosts name it, with what ~/.ssh/config says of it
        self.key: Any = None
        self.is_changed = False
        self.is_accepted = False

    def show(self, name: str, key: Any, is_changed: bool) -> bool:
        """Take down ``key`` of the host ``name``; whether it is accepted."""
        self.name = name
        self.key, self.fingerprint, self.is_changed = key, key.get_fingerprint(), is_changed
        self.is_accepted = not is_changed and self._accepted in (NEW, self.fingerprint)
        return self.is_accepted


def watching_client(watch: ShownKey, known: Any) -> Any:
    """A client of asyncssh that asks ``watch`` about a key that is not in ``known``."""
    import asyncssh

    class Client(asyncssh.SSHClient):  # type: ignore[misc,unused-ignore]
        def validate_host_public_key(self, host: str, addr: str, port: int, key: Any) -> bool:
            name = host if port == 22 else f"[{host}]:{port}"
            return watch.show(name, key, is_changed=bool(known.match(host, addr, port)[0]))

    return Client()


def not_known(target: str, watch: ShownKey, known: Path, accepted: str) -> HostUnreachable:
    """Why the key is not taken, and what to do."""
    if watch.is_changed:
        return HostUnreachable(
            f"{target} shows the key {watch.fingerprint}, and {known} has another for it: it was set up anew, "
            "or someone else answers in its place; nothing was sent to it",
            hint=f"if it was set up anew: ssh-keygen -R '{watch.name}', then accept the new key",
        )
    if not watch.fingerprint:
        return HostUnreachable(
            f"{target} shows no key that can be checked, or one that {known} revokes; nothing was sent to it",
            hint=f"try: ssh {target}",
        )
    other = f" and not {accepted}, which was accepted" if accepted else ""
    return HostUnreachable(
        f"{target} is not known yet: it shows the key {watch.fingerprint}{other}; nothing was sent to it",
        hint=f"compare it with what the host prints for `ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub`, then give "
        f"--accept-host-key {watch.fingerprint}, or log in once with ssh {target}",
    )


def remember(known: Path, watch: ShownKey) -> None:
    """Adds the accepted key to the known ones, as OpenSSH's client would."""
    line = watch.key.export_public_key("openssh").decode().split()
    known.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    text = known.read_text() if known.exists() else ""
    ending = "" if not text or text.endswith("\n") else "\n"
    with known.open("a") as file:
        file.write(f"{ending}{watch.name} {line[0]} {line[1]}\n")


def read_known(path: Path) -> Any:
    """The keys in the file ``path``; none when it is not there.

    Raises:
        ConfigError: it cannot be read.
    """
    import asyncssh

    try:
        return asyncssh.read_known_hosts(str(path)) if path.exists() else asyncssh.import_known_hosts("")
    except (OSError, ValueError) as error:
        raise ConfigError([f"known hosts: {path} cannot be read ({error})"], hint="give --known-hosts FILE") from error
