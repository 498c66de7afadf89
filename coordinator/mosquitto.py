"""Mosquitto as a broker on this machine: where the program is, its password file, its configuration."""

from __future__ import annotations

import base64
import hashlib
import os
import secrets
import shutil
from pathlib import Path

from coordinator.broker_certificates import ServerCertificate
from edge.contracts.envelope import MAX_MESSAGE_BYTES

_PACKET_OVERHEAD_BYTES = 1024
"""Fixed header, packet id and the longest topic, which count into a broker's packet limit."""


def find_mosquitto() -> str | None:
    """Path of the Mosquitto program, or None; Debian keeps it outside an ordinary user's PATH."""
    return shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin:/opt/homebrew/sbin")


def mosquitto_password(user: str, password: str) -> bytes:
    """A line of a Mosquitto 2 password file: PBKDF2 with SHA-512, 101 iterations, as ``mosquitto_passwd`` writes it."""
    salt = secrets.token_bytes(12)
    digest = hashlib.pbkdf2_hmac("sha512", password.encode(), salt, 101)
    return f"{user}:$7$101${base64.b64encode(salt).decode()}${base64.b64encode(digest).decode()}\n".encode()


def mosquitto_config(folder: Path, port: int, certificate: ServerCertificate | None, persistent: bool) -> bytes:
    """Mosquitto's configuration: loopback, known users only, packets up to one block and its envelope."""
    lines = [
        f"listener {port} 127.0.0.1",
        "allow_anonymous false",
        f"password_file {folder / 'passwords'}",
        f"max_packet_size {MAX_MESSAGE_BYTES + _PACKET_OVERHEAD_BYTES}",
        "max_inflight_messages 20",
        "max_queued_messages 1000",
        "set_tcp_nodelay true",
        "log_dest stderr",
        "log_type error",
        "log_type warning",
        f"persistence {'true' if persistent else 'false'}",
    ]
    if persistent:
        lines += [f"persistence_location {folder}/", "autosave_interval 1", "autosave_on_changes true"]
    if certificate:
        lines += [f"certfile {certificate.certificate}", f"keyfile {certificate.key}", "tls_version tlsv1.2"]
    if os.geteuid() == 0:
        # It would change to the user "mosquitto", which can neither read this folder nor be ended with its parent.
        lines.append("user root")
    return ("\n".join(lines) + "\n").encode()
