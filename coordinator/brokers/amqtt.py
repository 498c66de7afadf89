"""The embedded broker's process: amqtt on the loopback interface, one user, nothing anonymous; and browsers, if any.

Run as ``python -m coordinator.brokers.amqtt`` by :mod:`coordinator.brokers.opening`, which hands it a JSON line on
standard input (``port``, ``user``, ``password``, ``certificate``, ``key``, ``parent``, and ``web`` with ``bind``,
``port``, ``users``, ``certificate``, ``key``) and waits until the ports answer. On SIGHUP it reads the browsers' users
again.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from amqtt.plugins.base import BaseAuthPlugin
from amqtt.session import Session

from coordinator.brokers.amqtt_websockets import MAX_STRANGERS, BrowserBroker, BrowserUsers
from coordinator.brokers.parent_death import die_with_parent
from edge.system.printable import log_to_stderr

MAX_BROWSERS = 256 + MAX_STRANGERS
"""Connections at a time; whoever comes beyond waits."""


class OneUser(BaseAuthPlugin):  # type: ignore[misc]
    """Lets in exactly the user of the configuration.

    amqtt's file plugin hashes with Argon2, which costs 64 MB and tens of milliseconds per connection; against a random
    128-bit password that is made for this process a plain comparison is as good.
    """

    @dataclass
    class Config:
        """Who may connect."""

        user: str = ""
        password: str = ""

    async def authenticate(self, *, session: Session) -> bool:
        """Whether user name and password are the configured ones; compared in constant time."""
        given = f"{session.username or ''}\n{session.password or ''}"
        wanted = f"{self.config.user}\n{self.config.password}"
        return hmac.compare_digest(given.encode(), wanted.encode())


class Payload(bytes):
    """A message's bytes with the publisher's QoS, shown by its size alone.

    amqtt formats every message it relays into a debug line, even when nothing is logged: the repr of a 256 KiB block
    was three quarters of the broker's time (measured with benchmarks/broker_throughput.py: 11.6 CPU-seconds per GB, 2.5
    with this class).
    """

    qos: int

    def __repr__(self) -> str:
        """Its size."""
        return f"<{len(self)} bytes>"


class BlockBroker(BrowserBroker):
    """amqtt's broker, made fit for relaying blocks.

    amqtt delivers with the subscription's QoS whatever the publisher asked for. MQTT says the lower of both
    (3.1.1, section 4.3), and blocks are sent with QoS 0 so that no broker queues or repeats them.
    """

    async def _handle_message_delivery(self, client_session: Any, handler: Any, wait_deliver: Any) -> bool:
        message = wait_deliver.result()
        if message is not None and message.data is not None:
            payload = Payload(message.data)
            payload.qos = message.qos
            message.data = payload
        return bool(await super()._handle_message_delivery(client_session, handler, wait_deliver))

    async def _broadcast_message(self, session: Any, topic: Any, data: Any, force_qos: int | None = None) -> None:
        if force_qos is None and isinstance(data, Payload) and data.qos == 0:
            force_qos = 0
        await super()._broadcast_message(session, topic, data, force_qos)


def broker_config(settings: dict[str, Any]) -> dict[str, Any]:
    """amqtt's configuration for ``settings``; only what is named here is loaded."""
    listener: dict[str, Any] = {"type": "tcp", "bind": f"127.0.0.1:{settings['port']}"}
    if settings.get("certificate"):
        listener |= {"ssl": True, "certfile": settings["certificate"], "keyfile": settings["key"]}
    listeners = {"default": listener}
    if web := settings.get("web"):
        # Of an address with colons amqtt takes what is after the last one for the port; brackets it keeps.
        bind = f"{web['bind']}:{web['port']}"
        listeners["browsers"] = {"type": "ws", "bind": bind, "max_connections": MAX_BROWSERS}
        if web.get("certificate"):
            listeners["browsers"] |= {"ssl": True, "certfile": web["certificate"], "keyfile": web["key"]}
    return {
        "listeners": listeners,
        "plugins": {
            "coordinator.brokers.amqtt.OneUser": {"user": settings["user"], "password": settings["password"]},
        },
    }


async def serve(settings: dict[str, Any]) -> None:
    """Serves until SIGTERM."""
    web = settings.get("web")
    broker = BlockBroker(broker_config(settings), BrowserUsers(Path(web["users"])) if web else None)
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    loop.add_signal_handler(signal.SIGHUP, broker.reload)
    await broker.start()
    await stop.wait()
    await broker.shutdown()


def main() -> None:
    """Reads the settings and serves."""
    settings = json.loads(sys.stdin.readline())
    die_with_parent(settings["parent"])
    log_to_stderr(logging.WARNING)
    asyncio.run(serve(settings))


if __name__ == "__main__":
    main()
