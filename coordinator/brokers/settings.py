"""What stays the same when a broker is started again in its folder: ports, user, password; and which ports are free."""

from __future__ import annotations

import secrets
import socket
import time
from pathlib import Path

import msgspec

from coordinator.brokers.certificates import write_private


class BrokerSettings(msgspec.Struct, frozen=True, omit_defaults=True):
    """Ports on this machine, the one user and its password; ``web_port`` is 0 without a listener for browsers."""

    port: int
    user: str
    password: str
    web_port: int = 0


def load_settings(
    folder: Path, *, user: str = "", password: str = "", has_web: bool = False, web_port: int = 0
) -> BrokerSettings:
    """What ``broker.json`` in ``folder`` says as far as it still can be, anything else new; written there again.

    Args:
        user, password: to be used; kept ones, or random ones, when empty.
        has_web: whether a port for browsers is needed; ``web_port`` when that is given.
    """
    path = folder / "broker.json"
    kept = BrokerSettings(0, "", "")
    if path.exists():
        found = msgspec.json.decode(path.read_bytes(), type=BrokerSettings)
        if _is_free(found.port) or _becomes_free(found.port):
            kept = found
    port = kept.port or free_port()
    web = 0
    if has_web:
        web = web_port or (kept.web_port if kept.web_port and _becomes_free(kept.web_port) else 0) or free_port()
    settings = BrokerSettings(
        port,
        user or kept.user or f"apportion-{secrets.token_hex(4)}",
        password or kept.password or secrets.token_urlsafe(16),
        web,
    )
    write_private(path, msgspec.json.encode(settings))
    return settings


def other_ports(folder: Path, settings: BrokerSettings, *, keeps_web: bool = False) -> BrokerSettings:
    """``settings`` with ports that are free now, written to ``folder``.

    Args:
        keeps_web: the port for browsers stays: it was not chosen here.
    """
    web = settings.web_port if keeps_web or not settings.web_port else free_port()
    found = msgspec.structs.replace(settings, port=free_port(), web_port=web)
    write_private(folder / "broker.json", msgspec.json.encode(found))
    return found


def free_port() -> int:
    """A port that nobody listens at."""
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
