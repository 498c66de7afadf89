"""A broker as a child process (amqtt or Mosquitto, loopback, one random user or an identity), and how it is reached.

It keeps its ports, password and certificates in its folder, so that after a crash of the coordinator agents that were
left behind find the next one where the last one was. Only the process is this file's business; connections are
:mod:`edge.transport.mqtt`'s.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import msgspec

from coordinator.brokers.certificates import server_certificate, write_private
from coordinator.brokers.listening import PortTaken, listens, on_free_ports, tells_of_taken_port
from coordinator.brokers.mosquitto import MutualTls, WebSocketFiles, WebSocketListener, find_mosquitto, mosquitto_config
from coordinator.brokers.mosquitto_log import MosquittoLog
from coordinator.brokers.settings import load_settings, other_ports
from coordinator.identity.folder import EMBEDDED_PID_NAME, IdentityFolder
from coordinator.identity.password_hash import mosquitto_password
from edge.contracts.errors import BrokerUnreachable

START_TIMEOUT_S = 15.0

_CUT_OFF = "a message to be retained, a packet over the limit, or no MQTT"


@dataclass(frozen=True, kw_only=True)
class BrokerAddress:
    """How to reach a broker: ``kind`` is ``amqtt``, ``mosquitto`` or ``external``; the password is never printed.

    ``identity`` is the folder of the authority whose certificates it lets in, None where it asks for passwords.
    ``web_socket`` is where browsers reach it, ``ws(s)://host:port``; empty where they do not.
    ``reload`` has a broker that was started here learn of claims and revocations; for any other it does nothing.
    ``watch`` is told, by a thread of its own, which device a Mosquitto of ours with certificates cut off, and why.
    """

    kind: str
    url: str
    user: str = ""
    password: str = ""
    ca_file: Path | None = None
    certificate_file: Path | None = None
    key_file: Path | None = None
    identity: Path | None = None
    web_socket: str = ""
    reload: Callable[[], None] = field(default=lambda: None, compare=False)
    watch: Callable[[Callable[[str, str], None]], None] = field(default=lambda named: None, compare=False)

    def __repr__(self) -> str:
        """The address without its password."""
        return f"BrokerAddress({self.kind} at {self.url}, user {self.user or 'none'})"


class BrokerProcess:
    """A broker as a child process; it ends with the context, and with this process whatever ends it.

    Args:
        kind: ``embedded`` or ``mosquitto``.
        folder: holds its settings, certificates and log; made if missing, readable by its owner only.
        tls: whether it speaks TLS with certificates made for it.
        user, password: random ones when empty.
        persistent: Mosquitto only: keep queued messages on disk.
        identity: let in this authority's certificates, on the topics that are theirs, and no passwords. The embedded
            broker knows no certificates: there its one user stays, and browsers are what ``identity`` is for.
        web_socket: listen there for the browser devices of ``identity``.
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
        web_socket: WebSocketListener | None = None,
    ) -> None:
        if web_socket is not None and identity is None:
            raise ValueError("browsers are let in by an identity")
        self._kind = kind
        self._folder = folder
        self._persistent = persistent
        self._process: subprocess.Popen[str] | None = None
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)
        self._identity = identity
        self._web = web_socket
        self._has_certificates = identity is not None and kind != "embedded"
        self._certificate = server_certificate(folder) if tls and not self._has_certificates else None
        self._settings = load_settings(
            folder,
            user=user,
            password=password,
            has_web=web_socket is not None,
            web_port=0 if web_socket is None else web_socket.port,
        )
        self._reloading = threading.Lock()
        self._log = MosquittoLog(folder / "broker.log") if self._has_certificates else None
        self._named: Callable[[str, str], None] = lambda device, why: None

    @property
    def address(self) -> BrokerAddress:
        """Where it listens, the same before and after a restart."""
        web_socket = "" if self._web is None else self._web.url(self._settings.web_port)
        if self._identity is not None and self._has_certificates:
            # Whoever connects brings a certificate: open_broker adds the coordinator's.
            ca = IdentityFolder(self._identity).ca
            url = f"mqtts://127.0.0.1:{self._settings.port}"
            return BrokerAddress(
                kind=self._kind,
                url=url,
                ca_file=ca,
                identity=self._identity,
                web_socket=web_socket,
                reload=self.reload,
                watch=self.watch,
            )
        scheme = "mqtts" if self._certificate else "mqtt"
        return BrokerAddress(
            kind="amqtt" if self._kind == "embedded" else self._kind,
            url=f"{scheme}://127.0.0.1:{self._settings.port}",
            user=self._settings.user,
            password=self._settings.password,
            ca_file=self._certificate.ca if self._certificate else None,
            web_socket=web_socket,
            reload=self.reload,
        )

    @property
    def pid(self) -> int:
        """Process id while it runs."""
        if self._process is None:
            raise BrokerUnreachable(f"the {self._kind} broker is not running; start it")
        return self._process.pid

    def __enter__(self) -> BrokerProcess:
        on_free_ports(self.start, self._choose_ports)
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Starts it and waits until it listens.

        Raises:
            BrokerUnreachable: it ended, or does not listen within :data:`START_TIMEOUT_S`; with the end of its log.
                PortTaken: because another process has its port.
        """
        log_path = self._folder / "broker.log"
        with log_path.open("a") as log:
            begins_at = log_path.stat().st_size
            if self._kind == "embedded":
                self._process = self._start_amqtt(log)
            else:
                self._process = self._start_mosquitto(log)
        give_up_at = time.monotonic() + START_TIMEOUT_S
        while self._process.poll() is not None or not self._is_listening():
            if self._process.poll() is not None or time.monotonic() > give_up_at:
                self.stop()
                written = log_path.read_bytes()[begins_at:].decode(errors="replace")
                end = written[-600:].strip()
                raise (PortTaken if tells_of_taken_port(written) else BrokerUnreachable)(
                    f"the {self._kind} broker did not start on port {self._settings.port}: {end or 'no log'}",
                    hint="free the port, or delete the broker folder of the run so that another one is chosen",
                )
            time.sleep(0.02)
        if self._kind == "embedded" and self._web is not None:
            (self._folder / EMBEDDED_PID_NAME).write_text(f"{self.pid}\n", encoding="ascii")

    def stop(self, *, kill: bool = False) -> None:
        """Ends it, at once with ``kill``; nothing when it does not run."""
        process, self._process = self._process, None
        if process is None:
            return
        (self._folder / EMBEDDED_PID_NAME).unlink(missing_ok=True)
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
        """Have it read again who may come in, as the identity says now: after claims and revocations.

        A revoked name loses its topics at once, and its next connection; a browser's connection ends (Mosquitto 2.0.11:
        within 0.1 s; embedded: at once). All others stay. Nothing without an identity, or before the start.
        """
        with self._reloading:
            if self._identity is None or self._process is None:
                return
            if self._has_certificates:
                self._mutual()
            self._passwords()
            self._process.send_signal(signal.SIGHUP)  # nothing, when it has just ended by itself

    def revive(self) -> int | None:
        """Starts it again if it has ended by itself; the exit status it ended with, None when it runs.

        Raises:
            BrokerUnreachable, OSError: it does not start; the next call tries it again.
        """
        with self._reloading:
            ended = self._process
            if ended is None or (status := ended.poll()) is None:
                return None
            try:
                self.start()
            except (BrokerUnreachable, OSError):
                self._process = ended
                raise
            return status

    def watch(self, named: Callable[[str, str], None]) -> None:
        """Call ``named`` with each device that is cut off, and why; see :meth:`name_cut_off`."""
        self._named = named

    def name_cut_off(self) -> None:
        """Name the devices that the broker has cut off since the last call for what no device of ours sends."""
        if self._log is None:
            return
        for client, times in sorted(self._log.cut_off().items()):
            if not client.startswith("@"):  # coordinators have such names
                self._named(client, f"the broker cut it off {times} times: {_CUT_OFF}")

    def restart(self, *, kill: bool = True, pause_s: float = 0.0) -> None:
        """Ends it and starts it again at the same address, ``pause_s`` later."""
        self.stop(kill=kill)
        time.sleep(pause_s)
        self.start()

    def _choose_ports(self) -> None:
        """Other ports than those that another process has; one that the run file names stays."""
        self._settings = other_ports(
            self._folder, self._settings, keeps_web=self._web is not None and self._web.port > 0
        )

    def _start_amqtt(self, log: IO[str]) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "coordinator.brokers.amqtt"],
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
        if (web := self._web_files()) is not None:
            settings["web"] = {"bind": web.bind, "port": web.port, "users": str(web.passwords)}
            if web.certificate is not None:
                settings["web"] |= {"certificate": str(web.certificate), "key": str(web.key)}
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
        text = mosquitto_config(
            self._folder, port, self._certificate, self._persistent, mutual=mutual, web_socket=self._web_files()
        )
        write_private(config, text)
        return subprocess.Popen(
            [
                sys.executable,
                "-m",
                "coordinator.brokers.parent_death",
                str(os.getpid()),
                program,
                "-c",
                str(config),
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            text=True,
            env=_environment(),
            start_new_session=True,
        )

    def _mutual(self) -> MutualTls | None:
        if self._identity is None or not self._has_certificates:
            return None
        from coordinator.brokers.broker_files import loopback_broker

        return loopback_broker(self._identity.resolve(), self._folder.resolve())

    def _web_files(self) -> WebSocketFiles | None:
        passwords = self._passwords()
        if self._web is None or passwords is None:
            return None
        web = self._web
        return WebSocketFiles(self._settings.web_port, web.bind, passwords, web.certificate, web.key)

    def _passwords(self) -> Path | None:
        if self._identity is None or self._web is None:
            return None
        from coordinator.brokers.broker_files import browser_passwords

        return browser_passwords(self._identity, self._folder.resolve())

    def _is_listening(self) -> bool:
        places = [("127.0.0.1", self._settings.port)]
        if self._web is not None:
            places.append((self._web.bind or "127.0.0.1", self._settings.web_port))
        try:
            for place in places:
                socket.create_connection(place, 1.0).close()
        except OSError:
            return False
        return listens(self.pid, [port for _, port in places])


def _environment() -> dict[str, str]:
    """This process's environment, with the place our packages are imported from."""
    root = str(Path(__file__).resolve().parents[1])
    return dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")])))
