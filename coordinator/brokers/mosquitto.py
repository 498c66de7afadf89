"""Mosquitto as a broker: where the program is on this machine, its password file, its configuration."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from coordinator.brokers.certificates import ServerCertificate
from edge.contracts.envelope import MAX_MESSAGE_BYTES

_PACKET_OVERHEAD_BYTES = 1024
"""Fixed header, packet id and the longest topic, which count into a broker's packet limit."""

DEVICES = 10_000
"""How many devices a broker is made for where nobody says it."""

_QUEUED_BYTES = 64 << 20
_SPARE_FILES = 200

PACKET_LIMIT_BYTES = MAX_MESSAGE_BYTES + _PACKET_OVERHEAD_BYTES
"""The largest packet that a broker takes: one block and its envelope."""


@dataclass(frozen=True)
class MutualTls:
    """Files of a broker that lets in certificates only: PEM, and the access file that says who may use which topics.

    Attributes:
        ca: root of the clients' certificates.
        crl: those of them that are revoked.
        certificate, key: the broker's own.
    """

    ca: Path
    crl: Path
    certificate: Path
    key: Path
    access: Path


@dataclass(frozen=True)
class WebSocketListener:
    """Where a broker listens for browser devices, which have passwords, beside its own listener.

    Attributes:
        bind: address; empty for all.
        host: how browsers reach it, for its URL; ``bind``, or this machine's loopback address, where empty.
        certificate, key: PEM files; without them, ``ws`` in clear, for pages of this machine itself.
        port: 0: any free one, kept for the next start.
    """

    bind: str = "127.0.0.1"
    certificate: Path | None = None
    key: Path | None = None
    host: str = ""
    port: int = 0

    def url(self, port: int) -> str:
        """``wss://host:port``, or ``ws://``."""
        host = self.host or self.bind or "127.0.0.1"
        return f"{'wss' if self.certificate else 'ws'}://{f'[{host}]' if ':' in host else host}:{port}"


@dataclass(frozen=True)
class WebSocketFiles:
    """The same as Mosquitto's configuration names it, with the file of its users' hashed passwords."""

    port: int
    bind: str
    passwords: Path
    certificate: Path | None = None
    key: Path | None = None


def find_mosquitto() -> str | None:
    """Path of the Mosquitto program, or None; Debian keeps it outside an ordinary user's PATH."""
    return shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin:/opt/homebrew/sbin")


def service_limits(devices: int) -> bytes:
    """A drop-in for systemd: a connection is an open file, and a service has 1024 of them if nothing else is said."""
    return f"[Service]\nLimitNOFILE={2 * devices + _SPARE_FILES}\n".encode()


def most_connections(devices: int) -> int:
    """At a listener: a device that comes back has two for a moment."""
    return devices + devices // 10 + 100


def mosquitto_config(
    folder: Path,
    port: int,
    certificate: ServerCertificate | None,
    persistent: bool | None,
    *,
    bind: str = "127.0.0.1",
    mutual: MutualTls | None = None,
    web_socket: WebSocketFiles | None = None,
    devices: int = DEVICES,
) -> bytes:
    """Mosquitto's configuration: known users only, packets up to one block and its envelope.

    Passwords and topic rules are the broker's, not a listener's (``per_listener_settings`` would have to come before
    everything that includes this file). That lets nobody in at the wrong door: a listener that takes its users' names
    from certificates asks for one and reads no password.

    Args:
        persistent: whether queued messages are kept on disk; None leaves that, and the log, to other files.
        bind: address to listen at; empty for all.
        mutual: let in certificates instead of passwords.
        web_socket: listen there for browsers with passwords, too; only with ``mutual``, whose topic rules it needs.
        devices: how many connect at most.
    """
    if web_socket is not None and mutual is None:
        raise ValueError("a listener for browsers needs the topic rules of an identity")
    lines = [
        f"listener {port} {bind}".rstrip(),
        "allow_anonymous false",
        f"max_packet_size {PACKET_LIMIT_BYTES}",
        "max_inflight_messages 20",
        # Nothing here needs them, and whoever may publish could fill the memory with them for good.
        "retain_available false",
        # All devices may speak at once, after a restart they do; what is over the limit is dropped without a word.
        f"max_queued_messages {max(1000, 4 * devices)}",
        f"max_queued_bytes {_QUEUED_BYTES}",
        # Who asks for more is cut off, and the broker goes on: better than to be ended by the kernel.
        f"memory_limit {(256 << 20) + (64 << 10) * devices}",
        "set_tcp_nodelay true",
    ]
    if persistent is None:
        # More than the fleet would take the files, and the memory, that the fleet needs.
        lines.insert(1, f"max_connections {most_connections(devices)}")
    else:
        # Notices name whom it cuts off; without certificates a name is anybody's.
        kinds = ("error", "warning", "notice") if mutual else ("error", "warning")
        lines += ["log_dest stderr", *(f"log_type {kind}" for kind in kinds)]
        lines.append(f"persistence {'true' if persistent else 'false'}")
    if persistent:
        lines += [f"persistence_location {folder}/", "autosave_interval 1", "autosave_on_changes true"]
    if mutual is not None:
        lines += _mutual_lines(mutual)
    else:
        lines.append(f"password_file {folder / 'passwords'}")
    if certificate:
        lines += [f"certfile {certificate.certificate}", f"keyfile {certificate.key}", "tls_version tlsv1.2"]
    if os.geteuid() == 0 and persistent is not None:
        # It would change to the user "mosquitto", which can neither read this folder nor be ended with its parent.
        lines.append("user root")
    if web_socket is not None:
        lines += _web_socket_lines(web_socket, devices if persistent is None else None)
    return ("\n".join(lines) + "\n").encode()


def _web_socket_lines(files: WebSocketFiles, devices: int | None) -> list[str]:
    lines = [
        f"listener {files.port} {files.bind}".rstrip(),
        *([] if devices is None else [f"max_connections {most_connections(devices)}"]),
        "protocol websockets",
        f"password_file {files.passwords}",
        "use_username_as_clientid true",
    ]
    if files.certificate is not None:
        lines += [f"certfile {files.certificate}", f"keyfile {files.key}", "tls_version tlsv1.2"]
    return lines


def _mutual_lines(files: MutualTls) -> list[str]:
    return [
        f"cafile {files.ca}",
        f"crlfile {files.crl}",
        f"certfile {files.certificate}",
        f"keyfile {files.key}",
        "tls_version tlsv1.2",
        "require_certificate true",
        "use_identity_as_username true",
        # Two connections with one client id end each other: nobody may take another's.
        "use_username_as_clientid true",
        f"acl_file {files.access}",
    ]
