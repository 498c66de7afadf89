"""The page opposite a script instead of a run: a broker, claims and the page are real, orders are the test's own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from coordinator.brokers.mosquitto import WebSocketListener
from coordinator.brokers.process import BrokerProcess
from coordinator.cli.page_serving import page_server
from coordinator.conformance.script import Script
from coordinator.fleet.claim_handler import ClaimHandler
from coordinator.identity.authority import Authority
from coordinator.identity.claims import create_token
from coordinator.identity.signing import SigningKey
from edge.contracts.claims import ClaimLink
from edge.transport.broker_address import parse_broker
from edge.transport.mqtt import MqttTransport

FEDERATION, DEVICE = "scripted", "device-00"


@dataclass(frozen=True)
class ScriptedSite:
    """What a phone joins by ``link``; ``key`` signs what it trusts, ``script`` answers it over MQTT alone."""

    link: str
    script: Script
    key: SigningKey


@contextlib.contextmanager
def scripted_site(folder: Path) -> Iterator[ScriptedSite]:
    """Broker (embedded), page and script, for as long as the context is open."""
    identity = folder / "identity"
    Authority.create(identity).close()
    with contextlib.ExitStack() as stack:
        broker = stack.enter_context(
            BrokerProcess("embedded", folder / "broker", identity=identity, web_socket=WebSocketListener())
        )
        address = broker.address
        handler = ClaimHandler(
            identity, federation=FEDERATION, web_socket=address.web_socket, on_claimed=lambda device: broker.reload()
        )
        server = stack.enter_context(page_server("http://127.0.0.1:0", identity, handler, address.web_socket))
        with Authority(identity) as authority:
            token = create_token(authority, DEVICE, 600)
        host = address.url.removeprefix("mqtt://")
        transport = MqttTransport(
            parse_broker(f"mqtt://{address.user}:{address.password}@{host}"),
            client_id="script",
            subscriptions=["#"],
        )
        script = Script(transport, FEDERATION, DEVICE)
        script.start()
        stack.callback(script.stop)
        link = ClaimLink(server.address, token, "0" * 64, DEVICE).to_text()
        yield ScriptedSite(link, script, SigningKey.load(identity))
