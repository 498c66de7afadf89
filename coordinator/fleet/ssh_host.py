"""A host over SSH: whom we take it for, how we log in, commands and copies over one connection.

Names, ports, jump hosts and keys in ``~/.ssh/config`` count, and so does an agent with keys. A host's key must be known
(``known_hosts``) or be accepted by its fingerprint; a changed one never is. Files go through ``cat``: many small
systems have no SFTP.
"""

from __future__ import annotations

import asyncio
import getpass
import shlex
import signal
import socket
from pathlib import Path
from typing import Any

from coordinator.fleet.host import CommandFailed, Completed, HostLost, HostUnreachable
from coordinator.fleet.installation import home_path
from coordinator.fleet.steps import advice
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


__all__ = ["NEW", "SshHost", "connect_ssh"]

CONNECT_S = 20.0
KEEPALIVE_S, KEEPALIVES = 10.0, 3
"""A host that answers none of so many requests is lost: half a minute without power, not the hours TCP would wait."""

STALL_S = 60.0
"""A copy during which nothing was taken for this long is lost."""

CHUNK = 1 << 16


class SshHost:
    """Implements :class:`coordinator.fleet.host.Host`; made by :func:`connect_ssh`."""

    def __init__(self, connection: Any, name: str) -> None:
        self._connection = connection
        self._name = name

    @property
    def name(self) -> str:
        """As the owner wrote it."""
        return self._name

    async def run(self, command: str, *, stdin: bytes = b"", timeout_s: float = 120.0) -> Completed:
        """As :meth:`coordinator.fleet.host.Host.run`."""
        import asyncssh

        try:
            # The login shell need not be a POSIX one.
            done = await asyncio.wait_for(
                self._connection.run(f"exec sh -c {shlex.quote(command)}", input=stdin, encoding=None), timeout_s
            )
        except TimeoutError as error:
            raise HostLost(f"{self._name}: no answer within {timeout_s:g} s") from error
        except (asyncssh.Error, OSError) as error:
            raise self._lost(error) from error
        if done.exit_signal is not None:
            status = 128 + int(getattr(signal, f"SIG{done.exit_signal[0]}", 0))
        elif done.exit_status is None:
            # The channel closed without a status: sshd's process for us has ended, or the line to it.
            raise HostLost(f"{self._name}: the connection ended during a command")
        else:
            status = done.exit_status
        return Completed(status, _text(done.stdout), _text(done.stderr))

    async def put(self, source: Path, target: str) -> None:
        """As :meth:`coordinator.fleet.host.Host.put`."""
        import asyncssh

        size = source.stat().st_size
        # A connection that ends looks to `cat` like the end of the file: only a whole one is taken.
        command = (
            f"umask 077; place={home_path(target)}\n"
            f'cat > "$place.part" && [ "$(wc -c < "$place.part")" -eq {size} ] && mv -f "$place.part" "$place" || '
            '{ status=$?; rm -f "$place.part"; exit $status; }'
        )
        try:
            async with self._connection.create_process(f"exec sh -c {shlex.quote(command)}", encoding=None) as process:
                await self._send(process, source)
                out, err = await asyncio.wait_for(process.communicate(), STALL_S)
                status = process.exit_status
        except TimeoutError as error:
            raise HostLost(f"{self._name}: nothing of {source.name} was taken for {STALL_S:.0f} s") from error
        except (asyncssh.Error, OSError) as error:
            raise self._lost(error) from error
        if status is None:
            raise HostLost(f"{self._name}: the connection ended while {source.name} was copied")
        if status:
            words = (_text(err) or _text(out)).strip()[-400:] or f"status {status}"
            raise CommandFailed(f"{self._name}: {target} cannot be written: {words}", hint=advice(words))

    async def _send(self, process: Any, source: Path) -> None:
        """All of the file, as fast as the host takes it; stops early when the other side has ended."""
        try:
            with source.open("rb") as file:
                while data := file.read(CHUNK):
                    process.stdin.write(data)
                    await asyncio.wait_for(process.stdin.drain(), STALL_S)
                    await asyncio.sleep(0)  # a lost connection is told here, before much is written into it
            process.stdin.write_eof()
        except (BrokenPipeError, ConnectionResetError):
            return  # the reason is in its exit status, or the connection is gone and waiting for it says so

    async def close(self) -> None:
        """As :meth:`coordinator.fleet.host.Host.close`."""
        self._connection.close()
        await self._connection.wait_closed()

    def _lost(self, error: Exception) -> HostLost:
        return HostLost(f"{self._name}: the connection ended ({error})")


async def connect_ssh(
    target: str,
    *,
    port: int | None = None,
    key: Path | None = None,
    password: str | None = None,
    known_hosts: Path | None = None,
    accept_fingerprint: str = "",
) -> SshHost:
    """An open connection to ``target``, ``[user@]host``.

    Args:
        port: None: as ``~/.ssh/config`` says, else 22.
        key: file of a private key; None: those of an agent and of ``~/.ssh``.
        password: for hosts that let one log in with it.
        known_hosts: None: ``~/.ssh/known_hosts``. A key that is accepted is added to it.
        accept_fingerprint: ``SHA256:...`` of the key that an unknown host may have, or :data:`NEW`.

    Raises:
        ConfigError: asyncssh is not installed, the target or the key cannot be used.
        HostUnreachable: nobody answers, the host's key is not known, or we are not let in.
    """
    try:
        import asyncssh
    except ImportError as error:
        raise ConfigError(
            [f"SSH needs the package asyncssh ({error})"], hint="pip install 'apportion[fleet]'"
        ) from error

    user, _, address = target.rpartition("@")
    if not address or address.startswith("-"):
        raise ConfigError([f"host: {target!r} is not [user@]host"], hint="apportion device add pi@raspberrypi.local")
    known = known_hosts or Path.home() / ".ssh" / "known_hosts"
    watch = ShownKey(accept_fingerprint)
    hosts = read_known(known)
    options: dict[str, Any] = {"known_hosts": hosts}
    if port is not None:
        options["port"] = port
    if user:
        options["username"] = user
    if key is not None:
        options |= {"client_keys": [_read_key(key, password)], "agent_path": None}
    if password is not None:
        options["password"] = password
    try:
        connection = await asyncio.wait_for(
            asyncssh.connect(
                address,
                client_factory=lambda: watching_client(watch, hosts),
                keepalive_interval=KEEPALIVE_S,
                keepalive_count_max=KEEPALIVES,
                connect_timeout=CONNECT_S,
                login_timeout=2 * CONNECT_S,
                **options,
            ),
            3 * CONNECT_S,
        )
    except asyncssh.HostKeyNotVerifiable as error:
        raise not_known(target, watch, known, accept_fingerprint) from error
    except asyncssh.PermissionDenied as error:
        tried = _tried(key, password)
        raise HostUnreachable(
            f"{target} does not let us in with {tried} ({error.reason}); nothing was changed there",
            hint=f"see the user; put your key there (`ssh-copy-id {target}`), or give --key FILE or --ask-password",
        ) from error
    except asyncssh.KeyExchangeFailed as error:
        raise HostUnreachable(
            f"{target} and this machine have no kind of key in common ({error.reason}); nothing was sent to it",
            hint=f"if it was set up anew, {known} has a key of another kind: ssh-keygen -R {address}",
        ) from error
    except asyncssh.ConfigParseError as error:
        raise ConfigError([f"~/.ssh/config cannot be read: {error}"]) from error
    except (asyncssh.Error, OSError, TimeoutError) as error:
        raise HostUnreachable(
            f"{target} cannot be reached: {_reason(error)}",
            hint="see that it is on, in this network, and has SSH switched on (raspi-config, Interface Options)",
        ) from error
    if watch.is_accepted:
        remember(known, watch)
    return SshHost(connection, target)


def _read_key(path: Path, password: str | None) -> Any:
    import asyncssh

    try:
        return asyncssh.read_private_key(str(path.expanduser()), password)
    except (asyncssh.KeyImportError, asyncssh.KeyEncryptionError) as error:
        raise ConfigError(
            [f"--key: {path} cannot be used ({error})"],
            hint="give the private key, not the .pub; one with a passphrase goes into ssh-agent (ssh-add FILE)",
        ) from error
    except OSError as error:
        raise ConfigError([f"--key: {path}: {error.strerror}"]) from error


def _tried(key: Path | None, password: str | None) -> str:
    tried = [f"the key {key}" if key is not None else "the keys of ssh-agent and ~/.ssh"]
    if password is not None:
        tried.append("the password")
    user = f" as {getpass.getuser()}" if key is None and password is None else ""
    return " or ".join(tried) + user


def _reason(error: Exception) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "it refuses connections there: no SSH server listens on that port"
    if isinstance(error, socket.gaierror):
        return f"no such name in this network ({error.strerror})"
    if isinstance(error, TimeoutError):
        return f"no answer within {CONNECT_S:.0f} s"
    return str(error)


def _text(data: Any) -> str:
    return bytes(data or b"").decode(errors="replace")
