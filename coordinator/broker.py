"""The broker of a run: started here (amqtt or Mosquitto, loopback, one random user) or somewhere else by URL.

A broker started here keeps its port, password and certificates in its folder, so that after a crash of the coordinator
agents that were left behind find the next one where the last one was. Only the broker process is this file's business;
connections are :mod:`edge.transport.mqtt`'s.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import msgspec

from coordinator.broker_certificates import server_certificate, write_private
from coordinator.configuration import BrokerConfig, TlsFiles
from coordinator.identity.folder import IdentityFolder
from coordinator.mosquitto import MutualTls, find_mosquitto, mosquitto_config, mosquitto_password
from edge.contracts.errors import BrokerUnreachable, ConfigError

START_TIMEOUT_S = 15.0


@dataclass(frozen=True, kw_only=True)
class BrokerAddress:
    """How to reach a broker: ``kind`` is ``amqtt``, ``mosquitto`` or ``external``; the password is never printed.

    ``identity`` is the folder of the authority whose certificates it lets in, None where it asks for passwords.
    """

    kind: str
    url: str
    user: str = ""
    password: str = ""
    ca_file: Path | None = None
    certificate_file: Path | None = None
    key_file: Path | None = None
    identity: Path | None = None

    def __repr__(self) -> str:
        """The address without its password."""
        return f"BrokerAddress({self.kind} at {self.url}, user {self.user or 'none'})"


class _Settings(msgspec.Struct, frozen=True):
    """What stays the same when a broker is started again in its folder."""

    port: int
    user: str
    password: str


@contextlib.contextmanager
def open_broker(
    config: BrokerConfig, folder: Path, *, federation: str = "", environ: Mapping[str, str] = os.environ
) -> Iterator[BrokerAddress]:
    """The address of the broker that ``config`` names, running while the context is open.

    Args:
        federation: whose coordinator connects; needed where ``config`` names an identity.

    Raises:
        BrokerUnreachable: it cannot be started here.
        ConfigError: a password variable that is not set.
        IdentityRefused: the identity has no certificate that this broker would let in.
    """
    if config.identity:
        with _open_with_identity(config, folder, federation) as address:
            yield address
        return
    user, password = config.user, ""
    if config.password_env:
        password = environ.get(config.password_env, "")
        if not password:
            raise ConfigError([f"$.broker.password-env: the environment has no {config.password_env}; set it"])
    if config.url not in ("embedded", "mosquitto"):
        files = config.tls if isinstance(config.tls, TlsFiles) else TlsFiles(ca="")
        yield BrokerAddress(
            kind="external",
            url=config.url,
            user=user,
            password=password,
            ca_file=_path(files.ca),
            certificate_file=_path(files.cert),
            key_file=_path(files.key),
        )
        return
    with BrokerProcess(config.url, folder, tls=bool(config.tls), user=user, password=password) as process:
        yield process.address


@contextlib.contextmanager
def _open_with_identity(config: BrokerConfig, folder: Path, federation: str) -> Iterator[BrokerAddress]:
    from coordinator.identity.broker_files import coordinator_files

    identity, is_ours = Path(config.identity), config.url == "mosquitto"
    own = coordinator_files(identity, federation, issue=is_ours)
    with contextlib.ExitStack() as stack:
        url = config.url
        if is_ours:
            url = stack.enter_context(BrokerProcess(config.url, folder, identity=identity)).address.url
        yield BrokerAddress(
            kind="mosquitto" if is_ours else "external",
            url=url,
            ca_file=own.ca,
            certificate_file=own.certificate,
            key_file=own.key,
            identity=identity,
        )


class BrokerProcess:
    """A broker as a child process; it ends with the context, and with this process whatever ends it.

    Args:
        kind: ``embedded`` or ``mosquitto``.
        folder: holds its settings, certificates and log; made if missing, readable by its owner only.
        tls: whether it speaks TLS with certificates made for it.
        user, password: random ones when empty.
        persistent: Mosquitto only: keep queued messages on disk.
        identity: Mosquitto only: let in this authority's certificates, on the topics that are theirs, and no passwords.
    """

    def __init__(
        self,
        kind: str,
        folder: Path,
        *,
        tls: bool = False,
        user: str = "",
        password: str = "",
        persistent: bool = False,
        identity: Path | None = None,
    ) -> None:
        self._kind = kind
        self._folder = folder
        self._persistent = persistent
        self._process: subprocess.Popen[str] | None = None
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)
        self._identity = identity
        self._certificate = server_certificate(folder) if tls and identity is None else None
        self._settings = self._load_settings(user, password)

    @property
    def address(self) -> BrokerAddress:
        """Where it listens, the same before and after a restart."""
        if self._identity is not None:
            # Whoever connects brings a certificate: open_broker adds the coordinator's.
            ca = IdentityFolder(self._identity).ca
            url = f"mqtts://127.0.0.1:{self._settings.port}"
            return BrokerAddress(kind=self._kind, url=url, ca_file=ca, identity=self._identity)
        scheme = "mqtts" if self._certificate else "mqtt"
        return BrokerAddress(
            kind="amqtt" if self._kind == "embedded" else self._kind,
            url=f"{scheme}://127.0.0.1:{self._settings.port}",
            user=self._settings.user,
            password=self._settings.password,
            ca_file=self._certificate.ca if self._certificate else None,
        )

    @property
    def pid(self) -> int:
        """Process id while it runs."""
        if self._process is None:
            raise BrokerUnreachable(f"the {self._kind} broker is not running; start it")
        return self._process.pid

    def __enter__(self) -> BrokerProcess:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Starts it and waits until it listens.

        Raises:
            BrokerUnreachable: it ended, or does not listen within :data:`START_TIMEOUT_S`; with the end of its log.
        """
        log_path = self._folder / "broker.log"
        with log_path.open("a") as log:
            if self._kind == "embedded":
                self._process = self._start_amqtt(log)
            else:
                self._process = self._start_mosquitto(log)
        give_up_at = time.monotonic() + START_TIMEOUT_S
        while self._process.poll() is not None or not self._is_listening():
            if self._process.poll() is not None or time.monotonic() > give_up_at:
                self.stop()
                end = log_path.read_text(errors="replace")[-600:].strip()
                raise BrokerUnreachable(
                    f"the {self._kind} broker did not start on port {self._settings.port}: {end or 'no log'}",
                    hint="free the port, or delete the broker folder of the run so that another one is chosen",
                )
            time.sleep(0.02)

    def stop(self, *, kill: bool = False) -> None:
        """Ends it, at once with ``kill``; nothing when it does not run."""
        process, self._process = self._process, None
        if process is None:
            return
        if kill:
            process.kill()
        else:
            process.terminate()
        try:
            process.wait(5.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def reload(self) -> None:
        """Have Mosquitto read the identity's access file and revocation list again; connections stay.

        A revoked name loses its topics at once, and its next connection.
        """
        self._mutual()
        os.kill(self.pid, signal.SIGHUP)

    def restart(self, *, kill: bool = True, pause_s: float = 0.0) -> None:
        """Ends it and starts it again at the same address, ``pause_s`` later."""
        self.stop(kill=kill)
        time.sleep(pause_s)
        self.start()

    def _load_settings(self, user: str, password: str) -> _Settings:
        path = self._folder / "broker.json"
        if path.exists():
            kept = msgspec.json.decode(path.read_bytes(), type=_Settings)
            if _is_free(kept.port) or _becomes_free(kept.port):
                return _Settings(kept.port, user or kept.user, password or kept.password)
        settings = _Settings(
            _free_port(), user or f"apportion-{secrets.token_hex(4)}", password or secrets.token_urlsafe(16)
        )
        write_private(path, msgspec.json.encode(settings))
        return settings

    def _start_amqtt(self, log: IO[str]) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "coordinator.embedded_broker"],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            text=True,
            env=_environment(),
            start_new_session=True,  # Ctrl-C is for the coordinator: it ends its broker last
        )
        settings = msgspec.structs.asdict(self._settings) | {"parent": os.getpid()}
        if self._certificate:
            settings |= {"certificate": str(self._certificate.certificate), "key": str(self._certificate.key)}
        assert process.stdin is not None
        # Through a pipe: arguments and environment of a process can be read by others.
        with contextlib.suppress(BrokenPipeError), process.stdin:
            process.stdin.write(json.dumps(settings) + "\n")
        return process

    def _start_mosquitto(self, log: IO[str]) -> subprocess.Popen[str]:
        program = find_mosquitto()
        if program is None:
            raise BrokerUnreachable(
                "mosquitto is not installed: not on PATH, not in /usr/sbin",
                hint='install it (Debian: mosquitto), or set broker.url = "embedded"',
            )
        config = self._folder / "mosquitto.conf"
        port, mutual = self._settings.port, self._mutual()
        if mutual is None:
            write_private(self._folder / "passwords", mosquitto_password(self._settings.user, self._settings.password))
        write_private(config, mosquitto_config(self._folder, port, self._certificate, self._persistent, mutual=mutual))
        return subprocess.Popen(
            [sys.executable, "-m", "coordinator.parent_death", str(os.getpid()), program, "-c", str(config)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            text=True,
            env=_environment(),
            start_new_session=True,
        )

    def _mutual(self) -> MutualTls | None:
        if self._identity is None:
            return None
        from coordinator.identity.broker_files import loopback_broker

        return loopback_broker(self._identity.resolve(), self._folder.resolve())

    def _is_listening(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self._settings.port), 1.0):
            return True
        return False


def _environment() -> dict[str, str]:
    """This process's environment, with the place our packages are imported from."""
    root = str(Path(__file__).resolve().parents[1])
    return dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")])))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def _becomes_free(port: int, patience_s: float = 3.0) -> bool:
    """Whether ``port`` is given up soon: the broker of a killed coordinator ends a moment after it."""
    give_up_at = time.monotonic() + patience_s
    while time.monotonic() < give_up_at:
        if _is_free(port):
            return True
        time.sleep(0.1)
    return False


def _path(name: str) -> Path | None:
    return Path(name) if name else None
