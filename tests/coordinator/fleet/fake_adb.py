"""An adb server without phones: speaks adb's protocol to its clients over loopback, and runs a phone's shell with sh.

Source: AOSP, packages/modules/adb, SERVICES.TXT and OVERVIEW.TXT: a request is four hexadecimal digits of length and a
text; the answer is OKAY or FAIL, then what the service says. What adb's own server would do over USB ends here.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

PIXEL = {"ro.product.model": "Pixel 6", "ro.build.version.release": "14", "ro.product.cpu.abilist64": "arm64-v8a"}


class FakePhone:
    """A phone: what adb says of it, its properties, its apps, and which local port stands for a port of its.

    Args:
        state: as ``adb devices`` says: ``device``, ``unauthorized``, ``offline``, ....
        listening: port on the phone -> port here; nothing listens on others.
    """

    def __init__(
        self,
        serial: str,
        home: Path,
        *,
        state: str = "device",
        properties: Mapping[str, str] = PIXEL,
        packages: tuple[str, ...] = (),
        listening: Mapping[int, int] | None = None,
    ) -> None:
        self.serial, self.home, self.state = serial, home, state
        self.listening = dict(listening or {})
        self.commands: list[str] = []
        programs = home / "system" / "bin"
        programs.mkdir(parents=True)
        told = "".join(f"{name}) echo '{value}' ;; " for name, value in properties.items())
        _script(programs / "getprop", f'case "$1" in {told} *) echo ;; esac')
        known = "|".join(packages) or "-"
        _script(programs / "pm", f'case "$2" in {known}) echo "package:/data/app/$2/base.apk" ;; *) exit 1 ;; esac')

    def shell(self, command: str) -> bytes:
        """What the shell prints, both streams together, as adb's first shell protocol has it."""
        self.commands.append(command)
        path = f"{self.home / 'system' / 'bin'}:{os.environ['PATH']}"
        done = subprocess.run(
            ["sh", "-c", command],
            cwd=self.home,
            env={"HOME": str(self.home), "PATH": path},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=20,
            check=False,
        )
        return done.stdout


class FakeAdb:
    """The server; ``phones`` may be changed while it runs."""

    def __init__(self, phones: list[FakePhone]) -> None:
        self.phones = phones
        self.forwards: dict[int, tuple[str, int, socket.socket]] = {}
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._accept(self._listener, self._serve)

    def close(self) -> None:
        """End it, and every forward."""
        for port in list(self.forwards):
            self._end(port)
        _shut(self._listener)

    def _accept(self, listener: socket.socket, serve: object) -> None:
        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    threading.Thread(target=serve, args=(connection,), daemon=True).start()  # type: ignore[arg-type]

        threading.Thread(target=accept, daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError, EOFError):
            phone: FakePhone | None = None
            while True:
                asked = _read(connection, int(_read(connection, 4), 16)).decode()
                if asked.startswith("host:tport:serial:") or asked.startswith("host:transport:"):
                    phone = self._find(connection, asked.rpartition(":")[2])
                    if phone is None:
                        return
                    connection.sendall(b"OKAY" + (bytes(8) if "tport" in asked else b""))
                elif phone is not None and asked.startswith("shell:"):
                    connection.sendall(b"OKAY" + phone.shell(asked.removeprefix("shell:")))
                    return
                elif asked.startswith("host-serial:"):
                    serial, _, service = asked.removeprefix("host-serial:").partition(":")
                    if self._find(connection, serial) is not None:
                        self._forwarding(connection, serial, service)
                    return
                elif phone is not None:
                    self._forwarding(connection, phone.serial, asked.removeprefix("host:"))
                    return
                else:
                    self._host_service(connection, asked)
                    return

    def _host_service(self, connection: socket.socket, asked: str) -> None:
        if asked == "host:version":
            _okay(connection, "0029")
        elif asked == "host:devices":
            _okay(connection, "".join(f"{phone.serial}\t{phone.state}\n" for phone in self.phones))
        else:
            _fail(connection, f"unknown host service '{asked}'")

    def _find(self, connection: socket.socket, serial: str) -> FakePhone | None:
        found = next((phone for phone in self.phones if phone.serial == serial), None)
        if found is None:
            _fail(connection, f"device '{serial}' not found")
        elif found.state != "device":
            _fail(connection, f"device {found.state}")
            return None
        return found

    def _forwarding(self, connection: socket.socket, serial: str, service: str) -> None:
        if service == "features":
            _okay(connection, "")
        elif service == "list-forward":
            lines = [f"{name} tcp:{port} tcp:{remote}\n" for port, (name, remote, _) in self.forwards.items()]
            _okay(connection, "".join(lines))
        elif service.startswith("forward:"):
            local, _, remote = service.removeprefix("forward:").removeprefix("norebind:").partition(";")
            port = int(local.removeprefix("tcp:"))
            try:
                listener = socket.create_server(("127.0.0.1", port))
            except OSError as error:
                _fail(connection, f"cannot bind listener: {error.strerror}")
                return
            self.forwards[port] = (serial, int(remote.removeprefix("tcp:")), listener)
            self._accept(listener, lambda client: self._carry(client, port))
            connection.sendall(b"OKAYOKAY")
        elif service.startswith("killforward:"):
            self._end(int(service.rpartition("tcp:")[2]))
            connection.sendall(b"OKAYOKAY")
        else:
            _fail(connection, f"unknown host service '{service}'")

    def _carry(self, client: socket.socket, port: int) -> None:
        """What comes in goes to the phone's port; as with adb, a port nobody listens on ends it at once."""
        serial, remote, _ = self.forwards[port]
        phone = next(phone for phone in self.phones if phone.serial == serial)
        with client, contextlib.suppress(OSError):
            here = phone.listening.get(remote)
            if here is None:
                return
            with socket.create_connection(("127.0.0.1", here), 10) as there:
                there.settimeout(None)
                back = threading.Thread(target=_pump, args=(there, client), daemon=True)
                back.start()
                _pump(client, there)
                back.join(10)

    def _end(self, port: int) -> None:
        _, _, listener = self.forwards.pop(port)
        _shut(listener)


@contextlib.contextmanager
def fake_adb(*phones: FakePhone) -> Iterator[FakeAdb]:
    """A running server."""
    server = FakeAdb(list(phones))
    try:
        yield server
    finally:
        server.close()


def _script(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def _pump(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)


def _read(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = connection.recv(count - len(data))
        if not more:
            raise EOFError
        data += more
    return data


def _okay(connection: socket.socket, text: str) -> None:
    connection.sendall(b"OKAY" + f"{len(text):04x}{text}".encode())


def _fail(connection: socket.socket, text: str) -> None:
    connection.sendall(b"FAIL" + f"{len(text):04x}{text}".encode())


def _shut(listener: socket.socket) -> None:
    with contextlib.suppress(OSError):
        listener.shutdown(socket.SHUT_RDWR)
    listener.close()
